"""The finished steps of an unfinished engine, in a file next to it."""

from __future__ import annotations

import json
from pathlib import Path

from caovand.adapters.engine_install.places import MAX_BYTES, STEPS, write_atomically
from caovand.adapters.files import safe_files


class Journal:
    """The finished steps of an unfinished engine, on disk; those of another lock are ignored."""

    def __init__(self, path: Path, lock_sha256: str) -> None:
        self._file = path / STEPS
        self._lock_sha256 = lock_sha256

    def done(self) -> tuple[str, ...]:
        try:
            data = json.loads(safe_files.read_text(self._file, MAX_BYTES))
            return tuple(data["done"]) if data["lock_sha256"] == self._lock_sha256 else ()
        except (OSError, ValueError, KeyError, TypeError):
            return ()

    def begin(self) -> None:
        self._write(())

    def add(self, step: str) -> None:
        self._write((*self.done(), step))

    def _write(self, done: tuple[str, ...]) -> None:
        data = {"lock_sha256": self._lock_sha256, "done": done}
        write_atomically(self._file, json.dumps(data) + "\n")
