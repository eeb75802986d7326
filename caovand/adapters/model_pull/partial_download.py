"""A partly downloaded file, and the hash of its bytes so far."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from caovand.adapters.files import safe_files
from caovand.core.model_source.listing import GIT, Digest, RemoteFile

PIECE = 1 << 20
MAX_NOTE = 64 << 10


def begin_hash(digest: Digest, size_bytes: int) -> hashlib._Hash:
    """Start a digest's hash for a file of this size."""
    if digest.kind == GIT:
        # It identifies, it does not authenticate: the list that it is compared with came over TLS.
        return hashlib.sha1(b"blob %d\0" % size_bytes, usedforsecurity=False)
    return hashlib.sha256()


def matches(path: Path, file: RemoteFile, read: Callable[[int], None]) -> bool:
    """Whether this is the publisher's file; `read` is called with each count of bytes. Raises
    OSError."""
    if path.is_symlink():
        return False
    with os.fdopen(safe_files.open_regular(path), "rb") as opened:
        if os.fstat(opened.fileno()).st_size != file.size_bytes:
            return False
        digest = begin_hash(file.digest, file.size_bytes)
        while piece := opened.read(PIECE):
            digest.update(piece)
            read(len(piece))
    return digest.hexdigest() == file.digest.value


class PartialDownload:
    """The partial download of one file at `path`, with a note next to it; methods raise OSError."""

    def __init__(self, path: Path, file: RemoteFile) -> None:
        self.path, self._file = path, file
        self._note = path.with_suffix(".json")
        self._opened = safe_files.open_own(path, os.O_RDWR | os.O_CREAT, 0o644)
        self.size_bytes, self.etag = 0, ""
        self._hash = begin_hash(file.digest, file.size_bytes)
        try:
            if os.fstat(self._opened).st_size > file.size_bytes:
                self.cut()
            while piece := os.read(self._opened, PIECE):
                self._hash.update(piece)
                self.size_bytes += len(piece)
            self.etag = self._read_note()
        except BaseException:
            os.close(self._opened)
            raise

    def cut(self) -> None:
        """Start again from the beginning."""
        os.ftruncate(self._opened, 0)
        os.lseek(self._opened, 0, os.SEEK_SET)
        self.size_bytes, self.etag = 0, ""
        self._hash = begin_hash(self._file.digest, self._file.size_bytes)

    def note(self, etag: str) -> None:
        """Note the ETag of the content that follows."""
        if etag != self.etag:
            self.etag = etag
            note = {"etag": etag, "size": self._file.size_bytes, "file": self._file.path}
            safe_files.replace(self._note, json.dumps(note), 0o644)

    def append(self, data: bytes) -> None:
        """Write the next bytes."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._opened, view) :]
        self._hash.update(data)
        self.size_bytes += len(data)

    def is_right(self) -> bool:
        """Whether the file is complete and has the publisher's hash; if so, flush it to disk."""
        whole = self.size_bytes == self._file.size_bytes
        if not whole or self._hash.hexdigest() != self._file.digest.value:
            return False
        os.fsync(self._opened)
        return True

    def close(self) -> None:
        """Close the file, keeping it for a later attempt."""
        os.close(self._opened)

    def drop_note(self) -> None:
        """Delete the resume metadata, since the file is complete."""
        self._note.unlink(missing_ok=True)

    def _read_note(self) -> str:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            kept = json.loads(safe_files.read(self._note, MAX_NOTE))
            if isinstance(kept, dict) and kept.get("size") == self._file.size_bytes:
                return str(kept.get("etag", ""))
        return ""
