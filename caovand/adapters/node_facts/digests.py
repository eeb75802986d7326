"""Digests of a model's files, which show whether two machines have the same model.

A large file is sampled: reading a whole model takes minutes, and bad copies are truncated, of
another revision, or of another quantisation, which changes all of a file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from caovand.adapters.files import safe_files, state_file
from caovand.core.model_source.selection import MANIFEST
from caovand.core.units import MIB

WHOLE_BYTES = 64 * MIB
"""The largest file that is read completely."""
PIECES, PIECE_BYTES = 64, 64 << 10
UNREAD_SUFFIXES = (".md", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp", ".pdf")
UNREAD_STEMS = ("", "license", "licence", "notice")  # "" is the suffix of a hidden file
"""Files that no engine reads, and that may differ between two downloads of one model."""


def digests(folder: Path, names: Collection[str], cache: Path) -> dict[str, str]:
    """SHA-256 of each of these files in a folder. Raises OSError.

    They are cached in the folder `cache`: a file is read again once its size, time or inode
    changes.
    """
    place = cache / f"model-digests-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}.json"
    kept = state_file.read_or_none(place)
    before: dict[str, Any] = kept if isinstance(kept, dict) else {}
    now = {name: _digest_entry(folder / name, before.get(name)) for name in sorted(names)}
    if now != before:
        with suppress(OSError):  # next time they are read again
            cache.mkdir(parents=True, exist_ok=True)
            state_file.write(place, now)
    return {name: entry[-1] for name, entry in now.items()}


def names_in(folder: Path) -> list[str]:
    """The files directly in a folder that an engine can read. Raises OSError."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_file() and _is_read(entry.name)]


def _is_read(name: str) -> bool:
    lower = name.lower()
    known = lower.partition(".")[0] in UNREAD_STEMS or lower.endswith(UNREAD_SUFFIXES)
    return not known and name != MANIFEST


def _digest_entry(path: Path, kept: Any) -> list[Any]:
    """Size, time, inode and digest of a file; the cached entry if it is still valid."""
    descriptor = safe_files.open_regular(path)
    try:
        stamp = _stamp(descriptor)
        if isinstance(kept, list) and kept[:3] == stamp and isinstance(kept[-1], str):
            return kept
        digest = _digest(descriptor, stamp[0])
        if _stamp(descriptor) != stamp:  # it is being written: store an entry that matches no file
            stamp = [-1, -1, -1]
    finally:
        os.close(descriptor)
    return [*stamp, digest]


def _stamp(descriptor: int) -> list[int]:
    seen = os.fstat(descriptor)
    return [seen.st_size, seen.st_mtime_ns, seen.st_ino]


def _digest(descriptor: int, size_bytes: int) -> str:
    made = hashlib.sha256()
    if size_bytes <= WHOLE_BYTES:
        for at in range(0, size_bytes, MIB):
            made.update(os.pread(descriptor, MIB, at))
        return made.hexdigest()
    made.update(size_bytes.to_bytes(8, "big"))
    made.update(os.pread(descriptor, MIB, 0))
    made.update(os.pread(descriptor, MIB, size_bytes - MIB))
    for number in range(1, PIECES + 1):
        at = number * (size_bytes - PIECE_BYTES) // (PIECES + 1)
        made.update(os.pread(descriptor, PIECE_BYTES, at))
    return made.hexdigest()
