"""Devices that a confined program can reach, also through links made by an earlier one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from caovand.adapters.confinement import launch
from caovand.adapters.confinement.popen import Confinement, popen_arguments

pytestmark = pytest.mark.skipif(launch.landlock_abi() < launch.MIN_ABI, reason="no Landlock")

OPEN = """
import os, sys
for path in sys.argv[2:]:
    try: os.close(os.open(path, int(sys.argv[1]) | os.O_NONBLOCK))
    except OSError as problem: continue
    print(path)
"""


def opened(paths: Iterable[str], flags: int, confined: Confinement | None) -> tuple[set[str], str]:
    """Those of these paths that a program in an engine's place can open, and what is printed."""
    words = [sys.executable, "-S", "-c", OPEN, str(flags), *paths]
    with popen_arguments(words, {}, confined) as started:
        done = subprocess.run(**started, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()), done.stderr


def test_of_the_devices_an_engine_has_those_that_it_needs() -> None:
    """Root's own rights, and group disk, would let it read the disks, and every file on them."""
    found = {os.path.join(above, name) for above, _, names in os.walk("/dev") for name in names}
    found = {path for path in found if not os.path.islink(path)}
    nothing = Confinement((), (), (launch.PROC, "/dev/shm"))
    needed = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}
    known = ("/dev/nvidia", "/dev/dri/", "/dev/infiniband/", "/dev/shm/")
    for flags in (os.O_RDONLY, os.O_RDWR):
        could, _ = opened(sorted(found), flags, nothing)
        assert needed <= could
        others = {path for path in could - needed if not path.startswith(known)}
        assert others <= {f"/dev/{name}" for name in launch.DEVICES}


def test_an_engine_of_root_reads_neither_the_machines_memory_nor_its_log() -> None:
    words = ["/bin/grep", "CapEff", "/proc/self/status"]
    with popen_arguments(words, {}, Confinement((), (), ())) as started:
        done = subprocess.run(**started, capture_output=True, text=True, check=True)
    rights = int(done.stdout.split()[1], 16)
    assert not rights & (1 << launch.CAP_SYS_RAWIO | 1 << launch.CAP_SYSLOG)


def test_a_device_that_is_named_is_an_engines_too() -> None:
    device = "/dev/ptmx"
    for writable, could in (((), set()), ((device,), {device})):
        assert opened([device], os.O_RDWR, Confinement((), (), writable))[0] == could


def test_a_folder_that_an_earlier_engine_made_a_link_gives_the_next_one_nothing(
    tmp_path: Path,
) -> None:
    for name in ("state/slots", "home", "cache/kept", "disk"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").touch()
    (tmp_path / "cache/tmp").symlink_to(tmp_path / "state/slots")
    (tmp_path / "cache/hub").symlink_to(tmp_path / "home")
    (tmp_path / "cache/inside").symlink_to("kept")
    (tmp_path / "alias").symlink_to("disk")  # not in a folder of the engine's
    cache, state = str(tmp_path / "cache"), str(tmp_path / "state")
    names = ("cache/hub", "cache/tmp", "cache/tmp/deeper", "cache/inside", "cache/new", "alias")
    writable = (*(str(tmp_path / name) for name in names), cache)
    files = [
        str(tmp_path / name / "file") for name in ("state/slots", "home", "cache/kept", "disk")
    ]
    confined = Confinement((state,), (str(tmp_path / "cache/tmp"),), writable)
    could, printed = opened(files, os.O_RDWR, confined)
    assert could == {str(tmp_path / "cache/kept/file"), str(tmp_path / "disk/file")}
    assert (tmp_path / "cache/new").is_dir()
    assert opened(files[:1], os.O_RDONLY, confined)[0] == set()
    assert f"cannot write to {tmp_path}/cache/hub: " in printed
    assert "inside" not in printed
