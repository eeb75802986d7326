"""Untrusted files in untrusted folders."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from caovand.adapters.engine.pump import RotatedFile
from caovand.adapters.engine_install import places
from caovand.adapters.engine_install.errors import EngineError
from caovand.adapters.files import lock_file, safe_files, stale_files

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can make a file somebody else's")


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(path))


STRANGE: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "socket": bind,
    "large": lambda path: path.write_bytes(bytes(101)),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_only_a_regular_file_of_bounded_size_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    STRANGE[kind](tmp_path / "a")
    with pytest.raises(OSError, match=r"it is not a file|larger than 0 KiB|Is a directory"):
        safe_files.read(tmp_path / "a", 100)


def test_a_file_of_just_the_bound_is_read_whole_also_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"x" * 100)
    (tmp_path / "a").symlink_to("blob")
    assert safe_files.read(tmp_path / "a", 100) == b"x" * 100


def test_a_file_of_no_size_that_never_ends_is_cut_off() -> None:
    """As some file systems say 0 of whatever is in them."""
    assert safe_files.read(Path("/proc/self/status"), 1 << 20)
    with pytest.raises(OSError, match="larger than") as caught:
        safe_files.read(Path("/proc/self/status"), 10)
    assert caught.value.errno == errno.EFBIG


def plant_link(path: Path, canary: Path) -> None:
    path.symlink_to(canary)


def plant_second_name(path: Path, canary: Path) -> None:
    os.link(canary, path)


def plant_strangers(path: Path, canary: Path) -> None:
    path.write_text("")
    os.chown(path, 12345, 12345)


PLANTS = [
    plant_link,
    plant_second_name,
    pytest.param(plant_strangers, marks=as_root),
]


@pytest.mark.parametrize("plant", PLANTS)
def test_nothing_is_written_to_through_what_another_put_there(
    tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    canary = tmp_path / "canary"
    canary.write_text("as it was")
    for name in ("lock", ".lock", "engine.log", "own"):
        plant(tmp_path / name, canary)
    with pytest.raises(OSError, match="remove it"):
        safe_files.open_own(tmp_path / "own", os.O_WRONLY | os.O_CREAT)
    with pytest.raises(OSError, match="remove it"):
        lock_file.take(tmp_path / "lock")
    with pytest.raises(EngineError, match="remove it"), places.locked(tmp_path, "try"):
        pass
    log = RotatedFile(tmp_path / "engine.log")
    log.write(b"line\n")
    assert log.flush(30)
    assert log.lost_bytes == 5
    assert canary.read_text() == "as it was"


def test_what_is_replaced_is_never_what_a_link_leads_to(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("as it was")
    for name in ("a", ".a.new", "a.part"):
        (tmp_path / name).symlink_to(canary)
    safe_files.replace(tmp_path / "a", "new", 0o644)
    assert (tmp_path / "a").read_text() == "new"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644
    assert canary.read_text() == "as it was"


def test_nobody_else_may_hold_the_engines_folder(tmp_path: Path) -> None:
    """Opening a file is enough to lock it; earlier releases left it open to all."""
    (tmp_path / ".lock").write_text("")
    (tmp_path / ".lock").chmod(0o644)
    with places.locked(tmp_path, "try"):
        assert (tmp_path / ".lock").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("how", ["link", pytest.param("stranger", marks=as_root)])
def test_no_folder_of_another_is_emptied_as_the_engine_s_temporary_one(
    tmp_path: Path, how: str
) -> None:
    cache = Path("/tmp") / f"c{os.getpid()}"  # short: a longer name is not used at all
    cache.mkdir()
    try:
        found = stale_files.StaleFiles([cache], tmp_path / "ledger", tmp_path, tmp_path)
        assert found.folder is not None
        precious = tmp_path / "precious"
        precious.mkdir()
        (precious / "file").write_text("")
        if how == "link":
            found.folder.symlink_to(precious)
        else:
            precious.rename(found.folder)
            precious = found.folder
            os.chown(precious, 12345, 12345)
        found.begin()
        found.remove()
        assert (precious / "file").exists()
    finally:
        for path in cache.iterdir():
            path.unlink() if path.is_symlink() else shutil.rmtree(path)
        cache.rmdir()


def test_a_copy_has_none_of_the_rights_of_what_it_was_made_from(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text")
    (tmp_path / "a").chmod(0o6755)
    safe_files.copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_text() == "text"
    assert (tmp_path / "b").stat().st_mode & 0o7111 == 0
    with pytest.raises(FileExistsError):
        safe_files.copy(tmp_path / "a", tmp_path / "b")


def test_a_place_leads_to_a_shared_folder_again_and_again(tmp_path: Path) -> None:
    place, folder = tmp_path / "plan/vllm/infos", tmp_path / "infos/one"
    for _ in range(2):
        safe_files.link_to(place, folder)
        (place / "model.json").write_text("{}")
    assert place.is_symlink()
    assert [file.name for file in folder.iterdir()] == ["model.json"]
    safe_files.link_to(place, tmp_path / "infos/two")
    assert list(place.iterdir()) == []
    assert (folder / "model.json").exists()


def test_what_is_in_the_place_of_a_link_stays(tmp_path: Path) -> None:
    place = tmp_path / "infos"
    place.mkdir()
    (place / "model.json").write_text("{}")
    with pytest.raises(FileExistsError):
        safe_files.link_to(place, tmp_path / "shared")
    assert (place / "model.json").exists()


def test_no_link_leads_to_a_folder_that_is_itself_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder = tmp_path / "shared"
    folder.symlink_to("elsewhere")
    with pytest.raises(PermissionError, match="not own this folder"):
        safe_files.link_to(tmp_path / "infos", folder)
    assert not (tmp_path / "infos").is_symlink()


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_what_is_created_replaces_nothing(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    {"file": Path.touch, "link": lambda p: p.symlink_to("/none"), "folder": Path.mkdir}[kind](path)
    before = path.lstat()
    with pytest.raises(FileExistsError):
        safe_files.create(path, "new")
    assert path.lstat() == before
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_created_is_there_whole_with_its_mode(tmp_path: Path) -> None:
    safe_files.create(tmp_path / "a", "text\n", 0o640)
    assert (tmp_path / "a").read_text() == "text\n"
    seen = (tmp_path / "a").stat()
    assert (seen.st_mode & 0o7777, seen.st_nlink) == (0o640, 1)
    assert len(list(tmp_path.iterdir())) == 1


@as_root
def test_a_file_that_is_replaced_gets_the_owner_it_should_have(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    safe_files.replace(tmp_path / "a", "new", 0o640, (12345, 12346))
    seen = (tmp_path / "a").stat()
    assert (seen.st_uid, seen.st_gid, seen.st_mode & 0o7777) == (12345, 12346, 0o640)
    safe_files.create(tmp_path / "b", "", 0o600, (-1, 12346))
    assert ((tmp_path / "b").stat().st_uid, (tmp_path / "b").stat().st_gid) == (0, 12346)


def test_a_file_of_the_system_that_cannot_be_read_is_empty(tmp_path: Path) -> None:
    assert "MemTotal" in safe_files.read_or_empty(Path("/proc/meminfo"))
    assert safe_files.read_or_empty(tmp_path / "absent") == ""
    os.mkfifo(tmp_path / "fifo")
    assert safe_files.read_or_empty(tmp_path / "fifo") == ""
    (tmp_path / "odd").write_bytes(b"/\xff")
    assert os.fsencode(safe_files.read_or_empty(tmp_path / "odd", "surrogateescape")) == b"/\xff"
