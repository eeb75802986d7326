"""A .tar.gz for whoever helps, written to a file that the caller names."""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path

from caovand.adapters import safe_files
from caovand.cli.errors import CommandError, Exit


def write(path: Path, folder: str, contents: Mapping[str, bytes]) -> None:
    """Write files by name, all below `folder` in the archive; CommandError where that fails."""
    try:
        # Not through a link: in another's folder it leads to a file of the other's choice.
        opened = safe_files.open_own(path, os.O_WRONLY | os.O_CREAT, 0o644)
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
        raise CommandError(
            Exit.FAILED, f"cannot write {path}: {problem.strerror}", "name another file"
        ) from problem
