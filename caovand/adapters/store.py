"""JSON files written atomically, and the lock that allows only one daemon."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import Any

from caovand.adapters import safe_files
from caovand.core import limits


class LockTaken(Exception):
    """Another process has the lock; `pid` is the one it wrote, 0 if none yet."""

    def __init__(self, path: Path, pid: int) -> None:
        self.pid = pid
        who = f"caovand with pid {pid}" if pid else "another caovand"
        super().__init__(
            f"cannot start: {who} already uses {path.parent}; stop it first, or set"
            " RUNTIME_DIRECTORY, STATE_DIRECTORY and LOGS_DIRECTORY to folders of its own"
        )


def write_json(path: Path, document: Any) -> None:
    """Replace `path` by `document` atomically; on OSError the old file stays."""
    safe_files.replace(path, json.dumps(document))


def read_json(path: Path) -> Any:
    """The document in `path`, None without a readable one."""
    with limits.absent(), contextlib.suppress(ValueError, RecursionError):
        return json.loads(safe_files.read_text(path, safe_files.STATE_BYTES))
    return None


def take_lock(path: Path, *, on_full_disk: bool = False) -> int:
    """Lock `path` until this process ends and write its pid there; returns the descriptor.

    Raises LockTaken if another process has it. With `on_full_disk`, on a full or read-only disk,
    locks the existing file unchanged, or else its folder.
    """
    # Mode 600: whoever can open the file can also lock it, and keep the daemon from starting.
    try:
        descriptor = safe_files.open_own(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.fchmod(descriptor, 0o600)  # an earlier release left it readable by all
    except OSError as problem:
        if not on_full_disk or not safe_files.takes_nothing(problem):
            raise
        there = path if path.exists() else path.parent
        descriptor = os.open(there, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        text = ""
        with contextlib.suppress(IsADirectoryError):
            text = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise LockTaken(path, int(text) if text.isdigit() else 0) from None
    with contextlib.suppress(OSError):  # the pid is for people; the lock works without it
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor
