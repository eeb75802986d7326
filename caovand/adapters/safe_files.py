"""Opening files in places where somebody else may have put something.

Whoever owns a folder can put a link, a FIFO, a device or a second name of another's file where
a file is expected. So what is read must be a regular file of a bounded size (it may lie behind a
link: the hub's caches are made of them), what is written to must be ours, and what is replaced is
written beside under a name of its own. Every reader and writer of caovan goes through here;
tests/test_files.py holds it to that. Imports nothing of caovan: everything may stand on it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from pathlib import Path

MIB = 1 << 20
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
QUIETLY = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


STATE_BYTES = 8 * MIB
"""What a state file of ours may have: `store` reads no larger one, `state_file` sets it aside."""
FULL = (errno.ENOSPC, errno.EDQUOT)


def takes_nothing(problem: OSError) -> bool:
    """Whether a disk is full or read-only: a daemon can do without what it would keep there."""
    return problem.errno in (*FULL, errno.EROFS)


def read(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file of at most `most_bytes`; OSError for everything else."""
    descriptor = open_regular(path)
    try:
        seen = os.fstat(descriptor)
        parts: list[bytes] = []
        left = most_bytes + 1
        # Its size is no promise: it may grow meanwhile, and some file systems say 0.
        while seen.st_size <= most_bytes and left > 0:
            part = os.read(descriptor, min(left, MIB))
            if not part:
                return b"".join(parts)
            parts.append(part)
            left -= len(part)
    finally:
        os.close(descriptor)
    limit = f"{most_bytes // MIB} MiB" if most_bytes >= MIB else f"{most_bytes // 1024} KiB"
    raise OSError(errno.EFBIG, f"it is larger than {limit}", str(path))


def open_regular(path: Path) -> int:
    """Open a regular file to read, whoever owns it; OSError for everything else."""
    _require_regular(path, os.stat(path))  # opening is an act in itself for some devices
    descriptor = os.open(path, os.O_RDONLY | QUIETLY)
    try:
        _require_regular(path, os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_text(path: Path, most_bytes: int) -> str:
    """The same as text; ValueError where it is no UTF-8."""
    return read(path, most_bytes).decode()


def copy(path: Path, target: Path) -> None:
    """Copy what is in a regular file to a new one, with none of its rights; OSError."""
    with (
        os.fdopen(open_regular(path), "rb") as source,
        os.fdopen(os.open(target, NEW, 0o644), "wb") as made,
    ):
        shutil.copyfileobj(source, made, MIB)


def open_own(path: Path, flags: int, mode: int = 0o600, *, any_kind: bool = False) -> int:
    """Open a file to write to, made where `flags` say so; OSError unless it is ours alone.

    Ours: a regular file of our user or root, reached by no link and under no second name. With
    `any_kind` it may be a FIFO or a device, and opening it may wait for a reader.
    """
    assert not flags & os.O_TRUNC, "it would be emptied before anybody looked at it"
    try:
        quietly = QUIETLY & ~os.O_NONBLOCK if any_kind else QUIETLY
        descriptor = os.open(path, flags | os.O_NOFOLLOW | quietly, mode)
    except OSError as problem:
        if problem.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link; remove it", str(path)) from None
        raise
    try:
        seen = os.fstat(descriptor)
        if not any_kind:
            _require_regular(path, seen)
        if seen.st_uid not in (0, os.geteuid()):
            text = f"it belongs to uid {seen.st_uid}; remove it"
            raise PermissionError(errno.EPERM, text, str(path))
        if seen.st_nlink > 1:
            text = "the file has a second name; remove it"
            raise PermissionError(errno.EPERM, text, str(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def replace(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace `path` so that a crash leaves the old or the new one; OSError keeps the old one."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def is_own_folder(path: Path) -> bool:
    """Whether this is a folder of our own, and no link to one."""
    try:
        seen = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid()


def _require_regular(path: Path, seen: os.stat_result) -> None:
    if stat.S_ISDIR(seen.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(seen.st_mode):
        raise OSError(errno.EINVAL, "it is no file but a FIFO, a socket or a device", str(path))
