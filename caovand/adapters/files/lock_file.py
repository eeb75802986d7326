"""Lock files: one daemon per state folder, one command at a time for engines or a model."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from caovand.adapters.files import safe_files


class LockTaken(Exception):
    """Another process has the lock; `pid` is the one it wrote, 0 if it has not written it yet."""

    def __init__(self, path: Path, pid: int) -> None:
        super().__init__(f"{path} is locked by {f'pid {pid}' if pid else 'another process'}")
        self.path, self.pid = path, pid


def take(path: Path, *, on_full_disk: bool = False) -> int:
    """Lock `path` until its descriptor, the result, is closed, and write our pid to it.

    Raises LockTaken, or OSError. With `on_full_disk`, on a full or read-only disk, locks the
    existing file unchanged, or else its folder.
    """
    while True:
        descriptor = _open(path, on_full_disk=on_full_disk)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still_there(path, descriptor):
                break
        except BlockingIOError:
            pid = _read_pid(descriptor)
            os.close(descriptor)
            raise LockTaken(path, pid) from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    with contextlib.suppress(OSError):  # the pid is for people; the lock works without it
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _open(path: Path, *, on_full_disk: bool) -> int:
    # Mode 600: whoever can open the file can also lock it, and block everybody else.
    try:
        descriptor = safe_files.open_own(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.fchmod(descriptor, 0o600)  # an earlier release left it readable by every user
    except OSError as problem:
        if not on_full_disk or not safe_files.takes_nothing(problem):
            raise
        there = path if path.exists() else path.parent
        descriptor = os.open(there, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    return descriptor


def _is_still_there(path: Path, descriptor: int) -> bool:
    """Whether the locked file still exists: its last owner may have deleted it meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        there = path if path.exists() else path.parent
        return os.path.samestat(os.fstat(descriptor), os.stat(there))
    return False


def _read_pid(descriptor: int) -> int:
    """Read the pid that the lock's owner wrote; 0 if there is none."""
    text = ""
    with contextlib.suppress(IsADirectoryError):
        text = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    return int(text) if text.isdigit() else 0
