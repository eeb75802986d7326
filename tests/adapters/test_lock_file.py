"""A lock on a file: who has it, and when it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.files import safe_files
from caovand.adapters.files.lock_file import LockTaken, take


def test_a_second_daemon_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    held = take(tmp_path / "lock")
    with pytest.raises(LockTaken) as caught:
        take(tmp_path / "lock")
    os.close(held)
    assert caught.value.pid == os.getpid()


def test_the_lock_ends_with_its_process_however_that_ends(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from caovand.adapters.files.lock_file import take;"
        "take(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(os.environ, PYTHONPATH=str(Path(__file__).parents[2])),
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(LockTaken) as caught:
        take(tmp_path / "lock")
    assert caught.value.pid == holder.pid
    holder.kill()
    holder.communicate()
    os.close(take(tmp_path / "lock"))
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_a_lock_whose_holder_wrote_nothing_yet_is_refused_too(tmp_path: Path) -> None:
    held = take(tmp_path / "lock")
    os.ftruncate(held, 0)
    with pytest.raises(LockTaken, match="is locked by another process"):
        take(tmp_path / "lock")
    os.close(held)


def test_nobody_else_can_take_the_lock_first(tmp_path: Path) -> None:
    """Opening a file is enough to lock it."""
    os.close(take(tmp_path / "lock"))
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600


def test_the_engine_does_not_inherit_the_lock(tmp_path: Path) -> None:
    held = take(tmp_path / "lock")
    assert not os.get_inheritable(held)
    os.close(held)


def test_a_file_that_its_owner_deletes_meanwhile_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who locked the deleted one would be alone with it."""
    path, real = tmp_path / "lock", safe_files.open_own
    deletions = iter([True])

    def opened(*words: Any) -> int:
        descriptor = real(*words)
        if next(deletions, False):
            path.unlink()
        return descriptor

    monkeypatch.setattr(safe_files, "open_own", opened)
    held = take(path)
    assert os.path.samestat(os.fstat(held), path.stat())
    with pytest.raises(LockTaken):
        take(path)
    os.close(held)
