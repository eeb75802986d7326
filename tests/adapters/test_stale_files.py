"""Stale files of a killed engine are removed, and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from caovand.adapters.files import emptying, stale_files
from caovand.adapters.files.directories import Directories
from caovand.adapters.files.stale_files import MAX_FOLDER, SHARED, StaleFiles
from caovand.adapters.privileges import engine_user
from caovand.daemon.stale_files import places
from tests.patience import eventually

USER = """
import mmap, os, signal, sys
file = open(sys.argv[1], "w+b")
file.truncate(4096)
view = mmap.mmap(file.fileno(), 4096)
if sys.argv[2] == "map": file.close()
print("ready", flush=True)
signal.pause()
"""


@contextmanager
def user(path: Path, how: str) -> Iterator[subprocess.Popen[str]]:
    """A process that maps `path`, or also has it open."""
    argv = [sys.executable, "-c", USER, str(path), how]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def files_in(folder: Path, *, shared: Path | None = None) -> StaleFiles:
    return StaleFiles((folder / "c", Path("/tmp")), folder / "ledger.json", shared or folder)


def own_name(mark: str) -> Path:
    return SHARED / f"caovan-test-{os.getpid()}-{mark}"


def test_shared_memory_of_a_killed_engine_is_removed_and_a_neighbours_is_not(
    tmp_path: Path,
) -> None:
    ours, theirs = own_name("ours"), own_name("theirs")
    one = files_in(tmp_path, shared=SHARED)
    one.begin()
    try:
        with user(theirs, "map"):
            with user(ours, "map") as engine:
                one.look([engine.pid])
                engine.send_signal(signal.SIGKILL)
                engine.wait()
            assert one.remove() == ()
            assert (ours.exists(), theirs.exists()) == (False, True)
    finally:
        ours.unlink(missing_ok=True)
        theirs.unlink(missing_ok=True)


def test_a_semaphore_is_found_although_it_is_mapped_under_another_name(tmp_path: Path) -> None:
    made, name = own_name("made"), own_name("sem")
    one = files_in(tmp_path, shared=SHARED)
    one.begin()
    try:
        with user(made, "map") as engine:
            os.link(made, name)  # as sem_open does
            made.unlink()
            one.look([engine.pid])
        one.remove()
        assert not name.exists()
    finally:
        made.unlink(missing_ok=True)
        name.unlink(missing_ok=True)


def test_what_another_living_process_still_uses_stays(tmp_path: Path) -> None:
    path = own_name("both")
    one = files_in(tmp_path, shared=SHARED)
    one.begin()
    try:
        with user(path, "open") as engine, user(path, "open"):
            one.look([engine.pid])
            engine.kill()
            engine.wait()
            one.remove()
            assert path.exists()
    finally:
        path.unlink(missing_ok=True)


def test_a_file_of_a_container_with_the_same_inode_is_another(tmp_path: Path) -> None:
    shared, proc = tmp_path / "shm", tmp_path / "proc"
    shared.mkdir()
    one = StaleFiles((tmp_path / "c",), tmp_path / "ledger.json", shared, proc)

    def maps(pid: int, device: int, inode: int) -> Path:
        (proc / str(pid) / "fd").mkdir(parents=True)
        place = f"{os.major(device):02x}:{os.minor(device):02x} {inode}"
        path = proc / str(pid) / "maps"
        path.write_text(f"7f00-7f01 rw-s 00000000 {place}    {shared}/memory\n")
        return path

    one.begin()
    file = shared / "memory"
    file.touch()
    seen = file.stat()
    engine = maps(1, seen.st_dev, seen.st_ino)
    one.look([1])
    engine.unlink()
    maps(2, seen.st_dev + 1, seen.st_ino)
    assert one.remove() == ()
    assert not file.exists()


def test_what_was_there_before_the_engine_is_not_its(tmp_path: Path) -> None:
    path = own_name("old")
    path.write_bytes(b"")
    one = files_in(tmp_path, shared=SHARED)
    one.begin()
    try:
        with user(path, "map") as engine:
            one.look([engine.pid])
        one.remove()
        assert path.exists()
    finally:
        path.unlink(missing_ok=True)


def test_a_next_daemon_removes_what_a_killed_one_wrote_down(tmp_path: Path) -> None:
    path = own_name("ledger")
    try:
        first = files_in(tmp_path, shared=SHARED)
        first.begin()
        with user(path, "map") as engine:
            first.look([engine.pid])
        eventually(path.exists)
        files_in(tmp_path, shared=SHARED).begin()
        assert not path.exists()
    finally:
        path.unlink(missing_ok=True)


def test_what_a_daemon_was_killed_too_soon_to_write_down_is_removed_by_the_next(
    tmp_path: Path,
) -> None:
    old, new = own_name("before"), own_name("fresh")
    old.write_bytes(b"")
    try:
        first = files_in(tmp_path, shared=SHARED)
        first.begin()
        first.look(())
        with user(old, "map") as reader, user(new, "map") as maker:
            second = files_in(tmp_path, shared=SHARED)
            second.take_over((reader.pid, maker.pid))
        second.begin()
        assert (old.exists(), new.exists()) == (True, False)
    finally:
        old.unlink(missing_ok=True)
        new.unlink(missing_ok=True)


def test_without_a_ledger_nothing_is_taken_for_an_earlier_engines(tmp_path: Path) -> None:
    path = own_name("unknown")
    try:
        with user(path, "map") as somebody:
            one = files_in(tmp_path, shared=SHARED)
            one.take_over((somebody.pid,))
        one.begin()
        assert path.exists()
    finally:
        path.unlink(missing_ok=True)


def test_the_engines_own_temporary_folder_is_emptied(tmp_path: Path) -> None:
    short = Path(f"/tmp/caovan-stale-{os.getpid()}")
    one = StaleFiles((short,), tmp_path / "ledger.json", tmp_path / "none")
    one.begin()
    try:
        assert one.folder is not None
        assert one.folder.parent == short
        (one.folder / "vllm_dist_1").mkdir()
        (one.folder / "vllm_dist_1" / "x").write_text("x")
        (one.folder / "socket").write_text("")
        assert one.remove() == ()
        assert list(one.folder.iterdir()) == []
    finally:
        one.folder.rmdir()
        short.rmdir()


def test_a_link_that_an_engine_left_there_does_not_spoil_the_next_ones_folder(
    tmp_path: Path,
) -> None:
    with tempfile.TemporaryDirectory(prefix="c-") as short:
        one = StaleFiles((Path(short),), tmp_path / "ledger.json", tmp_path / "none")
        assert one.folder is not None
        one.folder.symlink_to(tmp_path)
        one.begin()
        assert one.made
        assert not one.folder.is_symlink()
        assert tmp_path.is_dir()


def test_a_folder_too_long_for_sockets_is_not_used(tmp_path: Path) -> None:
    long = tmp_path / ("x" * MAX_FOLDER)
    folder = StaleFiles((long, Path("/run/c")), tmp_path / "l").folder
    assert folder is not None
    assert folder.parent == Path("/run/c")
    assert StaleFiles((long,), tmp_path / "l").folder is None


def test_daemons_that_share_a_cache_leave_each_others_engines_alone(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="caovan-") as short:
        one, two = (
            StaleFiles((Path(short),), tmp_path / state / "ledger.json", tmp_path / "none")
            for state in ("serve-8000", "serve-8001")
        )
        one.begin()
        assert one.folder is not None
        (one.folder / "socket").touch()
        two.begin()
        assert (one.folder / "socket").exists()


def test_without_an_answer_of_the_engines_user_nothing_is_removed_and_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object) -> None:
        raise TimeoutError("it took too long")

    one, name = StaleFiles((tmp_path / "c",), tmp_path / "ledger.json", tmp_path), "psm_1"
    one.begin()
    with open(tmp_path / name, "w"):
        for _ in range(5):
            with monkeypatch.context() as patch:
                patch.setattr("caovand.adapters.files.stale_files.as_engine", silent)
                one.look([os.getpid()])
        one.look([os.getpid()])
    with monkeypatch.context() as patch:
        patch.setattr("caovand.adapters.files.stale_files.as_engine", silent)
        one.remove()
    assert (tmp_path / name).exists()


def test_what_an_engine_of_our_own_user_left_is_removed_by_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an upgrade to a release whose engines are another user's, who may not remove it."""
    one, asked = StaleFiles((), tmp_path / "ledger.json", tmp_path), list[object]()

    def as_another(function: Callable[..., object], *args: object) -> list[object]:
        if function is emptying.remove_all:
            asked.extend(args[0] if isinstance(args[0], list) else ())
        return []

    one.begin()
    with user(tmp_path / "psm_1", "map") as engine:
        one.look([engine.pid])
        monkeypatch.setattr(stale_files, "as_engine", as_another)
        monkeypatch.setattr(engine_user, "current", object)
        assert one.remove() == ()
        assert (tmp_path / "psm_1").exists(), "a process of ours still uses it"
    one._ours = frozenset({"psm_1"})
    assert one.remove() == ()
    assert not (tmp_path / "psm_1").exists()
    assert asked == []
    (tmp_path / "psm_2").touch()
    monkeypatch.setattr(os, "getuid", lambda: -2)
    one._ours = frozenset({"psm_2"})
    one.remove()
    assert asked == [str(tmp_path / "psm_2")]


def test_a_folder_that_cannot_be_made_is_nobodys_temporary_folder(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="c-") as short:
        (Path(short) / "file").touch()
        one = StaleFiles((Path(short) / "file",), tmp_path / "ledger.json", tmp_path)
        one.begin()
        assert one.folder is not None
        assert not one.made


def test_an_engine_of_another_user_has_its_temporary_folder_in_the_cache_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Directories(*(tmp_path / name for name in ("run", "state", "cache", "log")))
    assert places(own) == (own.cache, own.runtime)
    monkeypatch.setattr(engine_user, "current", object)
    assert places(own) == (own.cache,)
