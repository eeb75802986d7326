"""Disks that are full or read-only: real ones, tiny, under each of the daemon's folders."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon_process import Daemon
from tests.patience import until
from tests.scenarios.test_supervision import configuration, model

__all__ = ["model"]  # a fixture

FOLDERS = ("state", "cache", "log")


class Disks:
    """A folder for a daemon, with disks of 1 MiB mounted in it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="caovan-"))
        self._mounted: list[Path] = []

    def mount(self, name: str) -> Path:
        """A disk at one of the daemon's folders."""
        place = self.folder / name
        place.mkdir(exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "caovan-test", place]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("needs root, to mount a disk")
        self._mounted.append(place)
        return place

    @staticmethod
    def spoil(place: Path, how: str) -> None:
        """Fill a disk to its last byte, or make it read-only."""
        if how == "read-only":
            subprocess.run(["mount", "-o", "remount,ro", place], check=True)
            return
        with open(place / "filler", "ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 512)

    @staticmethod
    def heal(place: Path, how: str) -> None:
        """As it was."""
        if how == "read-only":
            subprocess.run(["mount", "-o", "remount,rw", place], check=True)
        else:
            (place / "filler").unlink()

    def remove(self) -> None:
        for place in self._mounted:
            subprocess.run(["umount", "-l", place], check=True)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def disks() -> Iterator[Disks]:
    disks = Disks()
    yield disks
    disks.remove()


@contextlib.contextmanager
def started(disks: Disks, config: str) -> Iterator[Daemon]:
    one = Daemon(disks.folder, config)
    try:
        one.start()
        yield one
    finally:
        one.stop()


REMEDY = {"full": "No space left on device", "read-only": "Read-only file system"}


def lacks(one: Daemon) -> list[str]:
    """The warnings of what cannot be written; the plan has others."""
    return [text for text in one.status()["warnings"] if text.startswith("cannot write")]


def warns(one: Daemon, place: Path, how: str) -> bool:
    """Whether the status tells of a disk, with the fact and what helps."""
    remedy = f"df -h {place}" if how == "full" else "mount it writable"
    return any(
        f"cannot write to {place}: {REMEDY[how]}" in text and remedy in text for text in lacks(one)
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("names", "how"),
    [
        *((FOLDERS, how) for how in REMEDY),
        *(((name,), how) for name in FOLDERS for how in REMEDY),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_it_starts_serves_and_stops_all_the_same_and_says_so(
    model: Path, disks: Disks, names: tuple[str, ...], how: str
) -> None:
    places = [disks.mount(name) for name in names]
    for place in places:
        disks.spoil(place, how)
    with started(disks, configuration(model)) as one:
        one.until_state("SERVING")
        for place in places:
            until(lambda place=place: warns(one, place, how), f"a warning of {place}")  # type: ignore[misc]
            told = [text for text in one.events() if f"cannot write to {place}" in text]
            assert len(told) == 1
        assert "warning" in one.ctl("status").stdout
        if "state" in names:
            file = f"cannot write {places[0]}/history.db"
            until(lambda: any(text.startswith(file) for text in lacks(one)), "the history warns")
        assert one.ctl("restart").returncode == 0
        assert one.ctl("mode", "stable").returncode == (1 if "state" in names else 0)
        for place in places:
            disks.heal(place, how)
        until(lambda: not lacks(one), "no warning left")
        assert one.ctl("mode", "stable").returncode == 0
        assert one.ctl("stop").returncode == 0
        assert one.tree() == []


@pytest.mark.long
def test_a_disk_that_fills_while_it_serves_costs_nothing_but_what_is_kept_there(
    model: Path, disks: Disks
) -> None:
    how = "full"  # none can be made read-only by hand while files on it are open
    places = [disks.mount(name) for name in FOLDERS]
    with started(disks, configuration(model)) as one:
        pid = one.until_state("SERVING")["engine_pid"]
        assert lacks(one) == []
        for place in places:
            disks.spoil(place, how)
        for place in places:
            until(lambda place=place: warns(one, place, how), f"a warning of {place}")  # type: ignore[misc]
        assert one.status()["engine_pid"] == pid
        os.kill(pid, 9)
        until(lambda: one.status()["engine_pid"] not in (None, pid), "a new engine")
        one.until_state("SERVING")
        assert any("cannot write an incident" in text for text in one.events())


@pytest.mark.long
def test_a_disk_that_takes_no_folder_is_no_reason_not_to_start(model: Path, disks: Disks) -> None:
    place = disks.mount("disk")
    one = Daemon(disks.folder, configuration(model))
    for name in ("STATE_DIRECTORY", "CACHE_DIRECTORY", "LOGS_DIRECTORY"):
        one.environ[name] = str(place / "below" / name.lower())
    disks.spoil(place, "read-only")
    try:
        one.start()
        one.until_state("SERVING")
        state = place / "below/state_directory"
        until(lambda: warns(one, state, "read-only"), "a warning")
    finally:
        one.stop()


@pytest.mark.long
def test_without_a_place_for_its_sockets_it_says_which_disk_and_what_helps(
    model: Path, disks: Disks
) -> None:
    place = disks.mount("run")
    disks.spoil(place, "read-only")
    one = Daemon(disks.folder, configuration(model))
    done = subprocess.run(
        [*one.caovand, "--config", str(one.config_path)],
        env=one.environ, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"{place}" in done.stderr
    assert "Read-only file system" in done.stderr
    assert "mount it writable" in done.stderr


@pytest.mark.long
def test_a_second_daemon_is_refused_on_a_full_disk_too(model: Path, disks: Disks) -> None:
    """It would take the first one's engine for what a killed daemon left."""
    place = disks.mount("state")
    disks.spoil(place, "read-only")
    with started(disks, configuration(model)) as one:
        environ = {**one.environ, "RUNTIME_DIRECTORY": str(disks.folder / "other")}
        done = subprocess.run(
            [*one.caovand, "--config", str(one.config_path)],
            env=environ, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 1
        assert f"already uses {place}" in done.stderr
