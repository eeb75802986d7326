"""Who can change the file at a path, and as whom an interpreter runs."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from caovand.adapters.engine import probe
from caovand.adapters.files import trust
from caovand.adapters.files.trust import find_doubt
from caovand.engines.vllm.probe import PROBE

STRANGER = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can make a file somebody else's")
US = (0, os.getuid())


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody may pass through."""
    with tempfile.TemporaryDirectory(prefix="caovan-trust-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_what_only_we_and_root_can_change_leaves_no_doubt(place: Path) -> None:
    (place / "file").write_text("")
    (place / "link").symlink_to("../" + place.name + "/file")
    for path in (place / "file", place / "link", place / "absent/below", place / "x/../file"):
        assert find_doubt(path, US) is None


@pytest.mark.parametrize(
    ("mode", "fact"), [(0o777, "can be changed by every user"), (0o775, "can be changed by group")]
)
def test_a_folder_others_may_write_is_in_doubt_with_all_below_it(
    place: Path, mode: int, fact: str
) -> None:
    folder = place / "shared"
    folder.mkdir()
    os.chown(folder, -1, 12345) if os.getuid() == 0 else None
    folder.chmod(mode)
    (folder / "file").write_text("")
    (place / "link").symlink_to(folder / "file")
    if mode == 0o775 and os.getuid() != 0:
        pytest.skip("a group that is not ours needs root")
    for path in (folder / "file", place / "link", folder / "absent"):
        found = find_doubt(path, US)
        assert found is not None
        assert (found.path, found.uid) == (folder, None)
        assert found.fact.startswith(fact)
    folder.chmod(mode | 0o1000)  # nobody may replace another's file there
    assert find_doubt(folder / "file", US) is None


@as_root
def test_a_link_of_a_stranger_is_in_doubt_wherever_it_leads(place: Path) -> None:
    place.chmod(0o1777)
    (place / "python").symlink_to(sys.executable)
    assert find_doubt(place / "python") is None
    os.lchown(place / "python", STRANGER, STRANGER)
    found = find_doubt(place / "python")
    assert found is not None
    assert found.uid == STRANGER
    assert str(found) == f"{place}/python belongs to uid {STRANGER}"


@as_root
def test_a_group_that_the_owner_chose_may_write_to_a_folder_but_name_no_interpreter(
    place: Path,
) -> None:
    os.chown(place, 0, 12345)
    place.chmod(0o775)  # as /var/log is on Ubuntu
    assert find_doubt(place / "caovan", groups=True) is None
    assert find_doubt(place / "caovan") is not None


def test_links_that_lead_in_a_circle_are_in_doubt(place: Path) -> None:
    (place / "one").symlink_to("two")
    (place / "two").symlink_to("one")
    found = find_doubt(place / "one", US)
    assert found is not None
    assert "cannot be checked" in found.fact


def script(path: Path, owner: int) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\necho uid $(id -u) groups $(id -G) >&2; exit 1\n")
    path.chmod(0o755)
    for one in (path.parent, path):
        os.chown(one, owner, owner)
    return path


@as_root
@pytest.mark.parametrize("whose", ["file", "interpreter", "both"])
def test_an_interpreter_another_named_or_owns_is_asked_as_that_other(
    place: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", "root's own")
    config = place / "config"
    config.write_text("")
    os.chown(config, STRANGER if whose != "interpreter" else 0, 0)
    python = script(place / "bin/python", STRANGER if whose != "file" else 0)
    found = trust.probing_user(str(python), config)
    assert found is not None
    assert found.uid == STRANGER
    assert "HF_TOKEN" not in found.popen(os.environ)["env"]
    with pytest.raises(probe.EngineMissing, match=f"uid {STRANGER} groups {STRANGER}"):
        probe.probe_engine(PROBE, str(python), None, named_by=config)
    with pytest.raises(trust.Distrusted, match=r"cannot run .* as root: .*; chown it to root"):
        trust.require(str(python), config)


@as_root
def test_what_two_strangers_decide_is_run_as_neither(place: Path) -> None:
    config = place / "config"
    config.write_text("")
    os.chown(config, 12345, 12345)
    python = script(place / "bin/python", STRANGER)
    with pytest.raises(probe.EngineMissing, match=f"belongs to uid {STRANGER}"):
        probe.probe_engine(PROBE, str(python), None, named_by=config)


@as_root
@pytest.mark.parametrize(
    "part",
    ["pyvenv.cfg", "base", "lib/python3.12/site-packages", "lib/python3.12/site-packages/x.pth"],
)
def test_an_environment_is_trusted_with_all_that_python_reads_first(place: Path, part: str) -> None:
    venv = place / "venv"
    for folder in (venv, venv / "bin", venv / "base"):
        folder.mkdir()
    (venv / "bin/python").symlink_to("/usr/bin/env")
    (venv / "pyvenv.cfg").write_text(f"home = {venv}/base\n")
    site = venv / "lib/python3.12/site-packages"
    site.mkdir(parents=True)
    (site / "x.pth").write_text("")
    python = str(venv / "bin/python")
    assert trust.probing_user(python, None) is None
    os.chown(venv / part, STRANGER, STRANGER)
    assert trust.probing_user(python, None) is not None


@as_root
def test_root_takes_no_home_no_path_and_no_program_of_another(place: Path) -> None:
    theirs = place / "home"
    script(theirs / "uv", STRANGER)
    environ = {
        "HOME": str(theirs),
        "XDG_CONFIG_HOME": "relative",
        "PATH": f":.:{theirs}:/usr/bin",
        "PIP_INDEX_URL": "https://mirror.example.org",
    }
    assert trust.own_environ(environ) == {
        "HOME": "/root",
        "PATH": "/usr/bin",
        "PIP_INDEX_URL": "https://mirror.example.org",
    }
    assert trust.program("uv", {"PATH": f":.:{theirs}"}) is None


def test_a_program_is_never_that_of_the_current_folder(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "uv").write_text("#!/bin/sh\n")
    (place / "uv").chmod(0o755)
    monkeypatch.chdir(place)
    assert trust.program("uv", {"PATH": ":.:"}) is None
    assert trust.program("uv", {"PATH": ""}) is None
    assert trust.program("uv", {"PATH": str(place)}) == str(place / "uv")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, which obeys no folder of another")
def test_root_looks_for_modules_in_no_folder_of_another(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, -1)
    environ = {"PATH": "/usr/bin", "PYTHONPATH": f"{theirs}:/usr/lib:relative"}
    assert trust.own_environ(environ)["PYTHONPATH"] == "/usr/lib"
