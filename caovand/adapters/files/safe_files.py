"""Open files safely where another user may have planted something.

The owner of a folder can put a link, a FIFO, a device or a hard link to another user's file where a
file is expected. So a file to read must be a regular one of bounded size (a link may lead to it:
the hub's caches consist of links), a file to write must be ours, and a file is replaced by renaming
a new one. Every reader and writer of caovan uses this module: tests/test_files.py enforces it. It
imports nothing of caovan, so everything may import it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

MIB = 1 << 20
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
KEEP_OWNER = (-1, -1)
"""The owner argument for files that stay ours: uid and gid as os.chown takes them."""
DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)


def takes_nothing(problem: OSError) -> bool:
    """Whether the disk is full or read-only: the daemon can run without those files."""
    return problem.errno in (*DISK_FULL_ERRORS, errno.EROFS)


def read(path: Path, max_bytes: int, *, follow: bool = True) -> bytes:
    """Read a regular file of at most `max_bytes`; raises OSError for anything else.

    Without `follow` a symbolic link is refused too.
    """
    descriptor = open_regular(path, follow=follow)
    try:
        seen = os.fstat(descriptor)
        parts: list[bytes] = []
        left = max_bytes + 1
        # Its size is not reliable: it may grow meanwhile, and some file systems report 0.
        while seen.st_size <= max_bytes and left > 0:
            part = os.read(descriptor, min(left, MIB))
            if not part:
                return b"".join(parts)
            parts.append(part)
            left -= len(part)
    finally:
        os.close(descriptor)
    limit = f"{max_bytes // MIB} MiB" if max_bytes >= MIB else f"{max_bytes // 1024} KiB"
    raise OSError(errno.EFBIG, f"it is larger than {limit}", str(path))


def open_regular(path: Path, *, follow: bool = True) -> int:
    """Open a regular file for reading, whoever owns it; raises OSError for anything else."""
    # merely opening some devices has side effects
    _require_regular(path, os.stat(path, follow_symlinks=follow))
    descriptor = os.open(path, os.O_RDONLY | OPEN_FLAGS | (0 if follow else os.O_NOFOLLOW))
    try:
        _require_regular(path, os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_text(path: Path, max_bytes: int) -> str:
    """Read a file as text; raises ValueError if it is not UTF-8."""
    return read(path, max_bytes).decode()


def read_or_empty(path: Path, errors: str = "replace") -> str:
    """Read a small file of the system, such as one in /proc or /sys; "" if it cannot be read."""
    with contextlib.suppress(OSError):
        return read(path, 8 * MIB).decode("utf-8", errors)
    return ""


def describe_exposure(seen: os.stat_result) -> str:
    """Describe how a secret's file is open to everybody; empty if it is not."""
    if not seen.st_mode & 0o007:
        return ""
    return f"every user of this machine can open it (mode {seen.st_mode & 0o777:04o})"


def copy(path: Path, target: Path) -> None:
    """Copy the content of a regular file, without its permissions, to a new one; raises OSError."""
    with (
        os.fdopen(open_regular(path), "rb") as source,
        os.fdopen(os.open(target, NEW, 0o644), "wb") as made,
    ):
        shutil.copyfileobj(source, made, MIB)


def open_own(path: Path, flags: int, mode: int = 0o600, *, any_kind: bool = False) -> int:
    """Open a file for writing, created if `flags` say so; OSError unless it is only ours.

    Ours: a regular file of our user or root, not a symbolic link, with no other hard link. With
    `any_kind` it may be a FIFO or a device, and opening it may wait for a reader.
    """
    assert not flags & os.O_TRUNC, "opening it would truncate it before the check"
    try:
        quietly = OPEN_FLAGS & ~os.O_NONBLOCK if any_kind else OPEN_FLAGS
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
            text = "another hard link points to it; remove it"
            raise PermissionError(errno.EPERM, text, str(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def replace(path: Path, text: str, mode: int = 0o600, owner: tuple[int, int] = KEEP_OWNER) -> None:
    """Replace `path` atomically: after a crash it is the old or the new file, after OSError the old
    one.

    `owner` are the uid and gid of the new file, -1 for our own.
    """
    with _temporary_file(path, text, mode, owner) as name:
        os.replace(name, path)


def create(path: Path, text: str, mode: int = 0o600, owner: tuple[int, int] = KEEP_OWNER) -> None:
    """Create `path` with its whole content, on disk; raises FileExistsError if it exists."""
    with _temporary_file(path, text, mode, owner) as name:
        os.link(name, path)  # unlike a rename, it replaces nothing
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def _temporary_file(path: Path, text: str, mode: int, owner: tuple[int, int]) -> Iterator[str]:
    """Write a file with this content next to `path`; it is removed at the end unless it was
    renamed."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if owner != KEEP_OWNER:
                os.fchown(file.fileno(), *owner)
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        yield name
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)


@contextlib.contextmanager
def readable_by_all() -> Iterator[None]:
    """Make files that are created here readable for the service, which runs as another user than
    the installer."""
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


def link_to(at: str | Path, to: str | Path) -> None:
    """Make `at` a symbolic link to our folder `to`, which is created if missing; raises OSError.

    Another link there is replaced, anything else stays: FileExistsError.
    """
    place, folder = Path(at), Path(to)
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    if not is_own_folder(folder):
        raise PermissionError(
            errno.EPERM, "the daemon's user does not own this folder", str(folder)
        )
    place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if place.is_symlink():
        if os.readlink(place) == str(folder):
            return
        place.unlink()
    os.symlink(folder, place)


def is_own_folder(path: Path) -> bool:
    """Whether this is a folder that we own, and not a link to one."""
    try:
        seen = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid()


def _require_regular(path: Path, seen: os.stat_result) -> None:
    if stat.S_ISLNK(seen.st_mode):
        raise OSError(errno.ELOOP, "it is a symbolic link", str(path))
    if stat.S_ISDIR(seen.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(seen.st_mode):
        raise OSError(errno.EINVAL, "it is not a file but a FIFO, a socket or a device", str(path))
