"""System V shared memory of killed engines is removed, and no other."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from caovand.adapters.files import stale_files
from caovand.adapters.privileges import engine_user

IPC_CREAT, IPC_PRIVATE = 0o1000, 0
MAKE = "import ctypes; print(ctypes.CDLL(None).shmget(0, 4096, 0o1600))"
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p


def listed() -> dict[int, str]:
    """The kernel's lines by the segments' numbers."""
    lines = Path(stale_files.SEGMENTS).read_text().splitlines()
    return {int(line.split()[1]): line for line in lines[1:]}


@pytest.fixture
def made() -> Iterator[list[int]]:
    """Segments: a dead process's, a dead process's that this one uses, and this one's own."""
    if not os.path.exists(stale_files.SEGMENTS):
        pytest.skip("a kernel without System V's shared memory")
    words = [sys.executable, "-S", "-c", MAKE]
    found = [int(subprocess.check_output(words, text=True)) for _ in "12"]
    if -1 in found:
        pytest.skip("no segment can be made here")
    used = libc.shmat(found[1], None, 0)
    found.append(libc.shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0o600))
    try:
        yield found
    finally:
        libc.shmdt(ctypes.c_void_p(used))
        for one in found:
            libc.shmctl(one, stale_files.IPC_RMID, None)


@pytest.mark.parametrize("stranger", [False, True])
def test_what_dead_makers_left_unused_is_removed(
    made: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stranger: bool
) -> None:
    head = Path(stale_files.SEGMENTS).read_text().splitlines()[0]
    own = [listed()[one] for one in made]  # nothing else of this user's
    (tmp_path / "shm").write_text("\n".join([head, *own]) + "\n")
    if stranger:
        monkeypatch.setattr(os, "geteuid", lambda: -2)
    stale_files.remove_unused_segments(str(tmp_path / "shm"))
    left = made if stranger else made[1:]
    assert [one for one in made if one in listed()] == left
    stale_files.remove_unused_segments(str(tmp_path / "none"))


@pytest.mark.parametrize("another", [True, False])
def test_only_a_user_of_engines_alone_has_its_segments_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, another: bool
) -> None:
    asked: list[object] = []

    def as_another(function: Callable[..., object], *_: object) -> list[object]:
        asked.append(function)
        return []

    monkeypatch.setattr(stale_files, "as_engine", as_another)
    monkeypatch.setattr(engine_user, "current", lambda: another or None)
    stale_files.StaleFiles((tmp_path,), tmp_path / "ledger.json", tmp_path).remove()
    assert (stale_files.remove_unused_segments in asked) == another
