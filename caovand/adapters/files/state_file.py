"""The small JSON files that outlive the daemon: replaced atomically, read whatever they contain.

An unusable file is set aside when the daemon starts. It neither stops the daemon nor is it lost: a
newer version may have written it, and its owner may go back to that version.
"""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from caovand.adapters.files import safe_files
from caovand.core import limits

UNREADABLE_SUFFIX = ".unreadable"
MAX_BYTES = 8 << 20
_NO_DOCUMENT = (errno.ELOOP, errno.EISDIR, errno.EINVAL, errno.EFBIG)
"""Errno values with which safe_files refuses a link, a folder, another kind of file, and a large
one."""


class Unusable(Exception):
    """The file exists, but is not a JSON document."""


def write(path: Path, document: Any) -> None:
    """Replace `path` with `document` atomically; on OSError the old file stays."""
    safe_files.replace(path, json.dumps(document))


def read(path: Path, max_bytes: int = MAX_BYTES) -> Any:
    """Read the document in a file of at most `max_bytes`; raises Unusable or OSError."""
    try:
        return json.loads(safe_files.read(path, max_bytes, follow=False))
    except (ValueError, RecursionError) as problem:
        raise Unusable("it is not a JSON document") from problem
    except OSError as problem:
        if problem.errno in _NO_DOCUMENT:
            raise Unusable(problem.strerror) from problem
        raise


def read_or_none(path: Path) -> Any:
    """Read the document in `path`; None if there is no readable one. OSError only at a limit."""
    with limits.suppress_absent(), contextlib.suppress(Unusable):
        return read(path)
    return None


def set_aside(folder: Path, files: Mapping[str, Callable[[Any], bool]]) -> Iterator[str]:
    """Rename each of these files that its check rejects; yield a message for each."""
    for name, usable in files.items():
        path = folder / name
        try:
            if usable(read(path)):
                continue
            reason = "this version cannot read its format"
        except FileNotFoundError:
            continue
        except Unusable as problem:
            reason = str(problem)
        except OSError as problem:  # perhaps intact, and readable later
            yield f"cannot read {path}: {problem.strerror}; check the disk and its permissions"
            continue
        aside = path.with_name(name + UNREADABLE_SUFFIX)
        try:
            move(path, aside)
        except OSError as problem:
            yield (
                f"cannot use {path}: {reason}, and renaming it failed: {problem.strerror}; "
                "delete it"
            )
        else:
            yield f"cannot use {path}: {reason}; moved to {aside.name}, starting with a new file"


def move(path: Path, target: Path) -> None:
    """Rename a file or folder, replacing whatever is at `target`; OSError leaves it unchanged."""
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    elif path.is_dir():  # a rename would not replace a file by a folder
        target.unlink(missing_ok=True)
    path.replace(target)
