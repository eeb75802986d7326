"""Write a .tar.gz for support, to a file that the caller names."""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path

from caovand.adapters.files import safe_files
from caovand.cli.common.errors import CommandError, Exit


def check(path: Path) -> None:
    """Raise CommandError if no archive can be written there; an existing file is left untouched."""
    try:
        made = not path.exists()
        os.close(_open(path))
        if made:
            path.unlink()
    except OSError as problem:
        raise _write_error(path, problem) from None


def write(path: Path, folder: str, contents: Mapping[str, bytes]) -> None:
    """Write these files below `folder` in the archive; raises CommandError."""
    try:
        opened = _open(path)
        os.ftruncate(opened, 0)
        with (
            os.fdopen(opened, "wb") as file,
            tarfile.open(fileobj=file, mode="w:gz") as archive,
        ):
            for name, data in contents.items():
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size, entry.mtime = len(data), int(time.time())
                archive.addfile(entry, io.BytesIO(data))
    except OSError as problem:
        raise _write_error(path, problem) from problem


def _open(path: Path) -> int:
    # Do not follow symbolic links: in another user's folder they could point anywhere.
    return safe_files.open_own(path, os.O_WRONLY | os.O_CREAT, 0o644)


def _write_error(path: Path, problem: OSError) -> CommandError:
    return CommandError(
        Exit.FAILED, f"cannot write {path}: {problem.strerror}", "name another file"
    )
