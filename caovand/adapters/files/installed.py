"""The folder that engines or models are installed into: which one it is, and one change at a time.

Anyone who can write there can run code as the service, so if root installs, the folder belongs to
root.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from caovand.adapters.files import lock_file, trust
from caovand.core.problem import ProblemError

GRAVE = ".removing-"
"""The prefix of a folder that is being deleted: renamed first, so that a half-deleted one never
seems complete."""


def grave_of(folder: Path) -> Path:
    """The name under which a folder is deleted."""
    return folder.with_name(GRAVE + folder.name)


def root_from(option: str | None, environ: Mapping[str, str], variable: str, default: Path) -> Path:
    """The root: the option, else the one in the environment's `variable`, else the default."""
    chosen = option or environ.get(variable)
    return Path(chosen).absolute() if chosen else default


def folders(root: Path) -> list[Path]:
    """The folders in the root, by name; links are none."""
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.is_symlink())


def require_own(folder: Path, what: str, error: type[ProblemError]) -> None:
    """Raise the error if we are root and another user can change the folder."""
    if os.geteuid() == 0 and (doubt := trust.find_doubt(folder)) is not None:
        raise error(
            what,
            f"{doubt}, and that user could make root write elsewhere",
            "run it as that user, without sudo, or choose a folder that root owns",
        )


@contextlib.contextmanager
def locked(
    lock: Path, what: str, busy: str, error: type[ProblemError], *, make: bool
) -> Iterator[int]:
    """Hold the lock, whose folder is made if `make`; raises the error, `busy` if it is taken."""
    try:
        if make:
            lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = lock_file.take(lock)
    except lock_file.LockTaken as taken:
        fact = f"{busy} (pid {taken.pid or 'unknown'})"
        raise error(what, fact, "wait until it exits") from None
    except OSError as problem:
        raise error(
            what,
            f"cannot write to {lock.parent}: {problem.strerror}",
            "run it with sudo, or choose another folder with --root",
        ) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)
