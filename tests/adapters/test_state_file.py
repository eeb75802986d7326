"""State files are never half-written; their folders; the remembered mode."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from caovand.adapters.files.config_file import ModeMemory
from caovand.adapters.files.directories import Directories, directories, own_directories
from caovand.adapters.files.state_file import read_or_none, write

# -- files ---


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write(tmp_path / "a", {"mode": "fast", "text": "Grüße"})
    assert read_or_none(tmp_path / "a") == {"mode": "fast", "text": "Grüße"}


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", None])
def test_what_cannot_be_read_is_none(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "a").write_bytes(content)
    assert read_or_none(tmp_path / "a") is None


def test_a_link_leads_to_no_state_of_ours(tmp_path: Path) -> None:
    write(tmp_path / "theirs", {"mode": "fast"})
    (tmp_path / "a").symlink_to(tmp_path / "theirs")
    assert read_or_none(tmp_path / "a") is None
    write(tmp_path / "a", {"mode": "max"})
    assert read_or_none(tmp_path / "theirs") == {"mode": "fast"}


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """No file may grow beyond 8 bytes, as on a disk that is full; pytest's own output neither."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, old)


def test_a_write_to_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    write(tmp_path / "a", {"old": True})
    with pytest.raises(OSError, match="too large"), full_disk():
        write(tmp_path / "a", {"new": "x" * 1000})
    assert read_or_none(tmp_path / "a") == {"old": True}
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_at_any_step_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    write(tmp_path / "a", {"old": True})

    def fail(*_: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="no"):
        write(tmp_path / "a", {"new": True})
    assert read_or_none(tmp_path / "a") == {"old": True}
    assert os.listdir(tmp_path) == ["a"]


def test_what_is_no_json_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write(tmp_path / "a", {"x": object()})
    assert os.listdir(tmp_path) == []


# -- folders ---


def test_systemd_says_where_things_are() -> None:
    environ = {
        "RUNTIME_DIRECTORY": "/run/a:/run/b",
        "STATE_DIRECTORY": "/var/lib/a",
        "CACHE_DIRECTORY": "/var/cache/a",
        "LOGS_DIRECTORY": "/var/log/a",
    }
    expected = Directories(*map(Path, ("/run/a", "/var/lib/a", "/var/cache/a", "/var/log/a")))
    assert directories(environ, 0) == directories(environ, 1000) == expected


def test_the_engine_works_elsewhere_so_nothing_is_relative() -> None:
    assert directories({"CACHE_DIRECTORY": "cache"}, 7).cache == Path("cache").absolute()


def test_root_without_systemd_uses_the_system_s_folders() -> None:
    assert directories({}, 0).runtime == Path("/run/caovan")
    assert directories({"RUNTIME_DIRECTORY": ""}, 0).runtime == Path("/run/caovan")


def test_a_user_uses_the_folders_of_the_desktop_standard() -> None:
    environ = {"HOME": "/home/u", "XDG_RUNTIME_DIR": "/run/user/7"}
    found = directories(environ, 7)
    assert found.runtime == Path("/run/user/7/caovan")
    assert found.state == Path("/home/u/.local/state/caovan")
    assert found.cache == Path("/home/u/.cache/caovan")
    assert found.logs == Path("/home/u/.local/state/caovan/log")


def test_users_without_a_home_do_not_share_folders() -> None:
    assert set(vars(directories({}, 7)).values()).isdisjoint(vars(directories({}, 8)).values())


def test_folders_are_made_with_the_rights_they_need(tmp_path: Path) -> None:
    places = Directories(*(tmp_path / "x" / name for name in ("run", "state", "cache", "log")))
    old = os.umask(0o022)
    try:
        places.make()
        places.make()  # there already: fine
    finally:
        os.umask(old)
    modes = [path.stat().st_mode & 0o777 for path in vars(places).values()]
    assert modes == [0o755, 0o750, 0o755, 0o750]


def test_root_s_own_folders_are_none_of_the_service() -> None:
    service, own = vars(directories({}, 0)).values(), vars(own_directories({}, 0)).values()
    assert not [one for one in own for other in service if one.is_relative_to(other)]
    assert own_directories({"HOME": "/home/u"}, 7) == directories({"HOME": "/home/u"}, 7)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a folder somebody else's")
@pytest.mark.parametrize("name", ["runtime", "state", "cache", "logs"])
@pytest.mark.parametrize("how", ["owner", "everybody", "link"])
def test_nothing_is_made_where_another_could_lead_us_elsewhere(
    tmp_path: Path, name: str, how: str
) -> None:
    around = tmp_path / "around"
    around.mkdir()
    folder = around / "deep" / "x"
    if how == "owner":
        os.chown(around, 12345, -1)
    elif how == "everybody":
        around.chmod(0o777)
    else:
        theirs = tmp_path / "theirs"
        theirs.mkdir()
        os.chown(theirs, 12345, -1)
        (around / "deep").symlink_to(theirs)
    chosen = {n: tmp_path / "fine" / n for n in ("runtime", "state", "cache", "logs")}
    places = Directories(**{**chosen, name: folder})
    with pytest.raises(PermissionError, match=f"set {name.upper()}_DIRECTORY to your own folder"):
        places.make()
    assert not (tmp_path / "fine").exists()
    assert not folder.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a folder somebody else's")
def test_sockets_do_not_go_where_somebody_else_could_replace_them(tmp_path: Path) -> None:
    around = tmp_path / "caovan-0"
    around.mkdir()
    os.chown(around, 12345, -1)
    places = Directories(around / "caovan", *(tmp_path / n for n in ("state", "cache", "log")))
    with pytest.raises(PermissionError, match="it belongs to uid 12345"):
        places.make()


# -- the mode ---


def test_a_mode_is_remembered_and_forgotten(tmp_path: Path) -> None:
    memory = ModeMemory(tmp_path / "mode.json")
    assert memory.mode is None
    memory.choose("fast")
    assert ModeMemory(tmp_path / "mode.json").mode == "fast"
    memory.choose(None)
    assert ModeMemory(tmp_path / "mode.json").mode is None


@pytest.mark.parametrize("content", ["fast", {"mode": "warp"}, {"mode": []}, {}, None, 3])
def test_a_damaged_memory_is_none(tmp_path: Path, content: object) -> None:
    (tmp_path / "mode.json").write_text(json.dumps(content))
    assert ModeMemory(tmp_path / "mode.json").mode is None


def test_a_mode_that_could_not_be_written_is_not_in_force(tmp_path: Path) -> None:
    memory = ModeMemory(tmp_path / "gone" / "mode.json")
    with pytest.raises(OSError, match=r"mode\.json"):
        memory.choose("fast")
    assert memory.mode is None
