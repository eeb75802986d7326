"""Reads the small files that outlive the daemon, even damaged, huge or not a file at all.

An unusable one is set aside when the daemon starts. It neither stops the daemon nor is it lost: a
newer version may have written it, and its owner may go back to that version.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from caovand.adapters.safe_files import STATE_BYTES

ASIDE = ".unreadable"


class Unusable(Exception):
    """Something is there, but not a JSON document."""


def read(path: Path, most: int = STATE_BYTES) -> Any:
    """The document in a file of at most `most` bytes; Unusable, or OSError for a fault."""
    try:
        # A pipe would block, a link leads elsewhere.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as problem:
        if problem.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            raise Unusable(problem.strerror) from problem
        raise
    try:
        seen = os.fstat(descriptor)
        if not stat.S_ISREG(seen.st_mode):
            raise Unusable("it is not a regular file")
        if seen.st_size > most:
            raise Unusable(f"it has more than {most} bytes")
        with open(descriptor, "rb", closefd=False) as file:
            return json.loads(file.read(most))
    except (ValueError, RecursionError) as problem:
        raise Unusable("it is not a JSON document") from problem
    finally:
        os.close(descriptor)


def set_aside(folder: Path, files: Mapping[str, Callable[[Any], bool]]) -> Iterator[str]:
    """Rename each of these files that its check rejects; yields a message for each."""
    for name, usable in files.items():
        path = folder / name
        try:
            if usable(read(path)):
                continue
            why = "it is not in a format that this version reads"
        except FileNotFoundError:
            continue
        except Unusable as problem:
            why = str(problem)
        except OSError as problem:  # perhaps intact, and readable later
            yield f"cannot read {path}: {problem.strerror}; check the disk and its permissions"
            continue
        aside = path.with_name(name + ASIDE)
        try:
            _remove(aside)
            path.rename(aside)
        except OSError as problem:
            yield f"cannot use {path}: {why}; nor rename it: {problem.strerror}; delete it"
        else:
            yield f"cannot use {path}: {why}; moved to {aside.name}, starting with a new file"


def move(path: Path, target: Path) -> None:
    """Rename a file, whatever it is, over what is at `target`; OSError leaves it as it was."""
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    path.replace(target)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
