"""Incidents on disk: one folder each, `0007-hang/`; the oldest are removed by count and size.

A folder is written under a temporary name, then renamed, so that none is ever incomplete.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from caovand.adapters.files import safe_files, state_file
from caovand.core.reporting.incident_text import REPORT

MAX_INCIDENTS = 20
MAX_BYTES = 64 << 20
NEW = ".new-"
_NAME = re.compile(r"(\d{4,9})-([a-z-]+)")
_FILE = re.compile(r"[a-z][a-z0-9-]*\.[a-z]+")


class NoIncident(Exception):
    """There is no such incident, or it has no such file."""


class Incidents:
    """The incidents in `folder`, which is created with the first one."""

    def __init__(
        self, folder: Path, max_count: int = MAX_INCIDENTS, max_bytes: int = MAX_BYTES
    ) -> None:
        self.folder, self._max_count, self._max_bytes = folder, max_count, max_bytes

    def write(self, failure: str, report: Mapping[str, Any], files: Mapping[str, str]) -> str:
        """Store an incident and return its name; on OSError nothing is kept."""
        self.folder.mkdir(mode=0o750, exist_ok=True)
        for left in self.folder.glob(f"{NEW}*"):
            shutil.rmtree(left, ignore_errors=True)
        self._prune(self._max_count - 1)
        number = max((number for number, _ in self._list_folders()), default=0) + 1
        fresh = Path(tempfile.mkdtemp(dir=self.folder, prefix=NEW))
        try:
            texts = {REPORT: json.dumps({"number": number, **report}, indent=1) + "\n", **files}
            for name, text in texts.items():
                (fresh / name).write_text(text, encoding="utf-8", errors="replace")
            name = f"{number:04}-{failure}"
            fresh.rename(self.folder / name)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        self._prune(self._max_count)
        return name

    def add(self, name: str, file: str, text: str) -> None:
        """Add a file to the incident `name`; raises NoIncident, OSError."""
        path = self.folder / name
        if _NAME.fullmatch(name) is None or _FILE.fullmatch(file) is None or not path.is_dir():
            raise NoIncident(f"cannot add to incident {name[:64]}: it has expired")
        safe_files.replace(path / file, text, 0o644)
        self._prune(self._max_count)

    def amend(self, name: str, more: Mapping[str, Any]) -> None:
        """Add fields to the report of the incident `name`; raises OSError, state_file.Unusable."""
        path = self.folder / name / REPORT
        report = {**state_file.read(path, self._max_bytes), **more}
        safe_files.replace(path, json.dumps(report, indent=1) + "\n", 0o644)

    def take_over(self, others: Incidents) -> None:
        """Move the incidents of another folder here, continuing our numbers; raises OSError.

        Each moves by one rename: if this is interrupted, the next time moves the rest.
        """
        for number, path in others._list_folders():
            fresh = max(number, max((known for known, _ in self._list_folders()), default=0) + 1)
            with contextlib.suppress(state_file.Unusable, TypeError):
                report = {**state_file.read(path / REPORT, self._max_bytes), "number": fresh}
                safe_files.replace(path / REPORT, json.dumps(report, indent=1) + "\n")
            path.rename(self.folder / f"{fresh:04}-{path.name.partition('-')[2]}")
        for rest in others.folder.iterdir():
            state_file.move(rest, self.folder / rest.name)
        others.folder.rmdir()

    def listed(self) -> list[dict[str, Any]]:
        """All incidents, oldest first."""
        rows = []
        for number, path in self._list_folders():
            try:
                report = state_file.read(path / REPORT, self._max_bytes)
                rows.append({
                    "number": number,
                    "failure": report["failure"],
                    "at": report["at"],
                    "phase": report["finding"]["phase"],
                    "text": str(report["finding"]["text"])[:300],
                    "action": str((report["decision"] or {}).get("text", ""))[:300],
                    "bytes": _size(path),
                })  # fmt: skip
            except (OSError, state_file.Unusable, KeyError, TypeError, AttributeError):
                continue  # pruned meanwhile, or not written by us
        return rows

    def files(self, number: int) -> dict[str, int]:
        """The files of an incident with their sizes; raises NoIncident."""
        path = self._path(number)
        # A file whose name begins with a dot is still being written.
        files = (f for f in sorted(path.iterdir()) if f.is_file() and not f.name.startswith("."))
        return {file.name: file.stat().st_size for file in files}

    def read(self, number: int, name: str, offset: int, max_bytes: int) -> bytes:
        """Read part of a file of an incident; raises NoIncident."""
        if name not in self.files(number):
            raise NoIncident(f'cannot read "{name[:64]}": incident {number} has no such file')
        with open(self._path(number) / name, "rb") as file:
            file.seek(min(offset, os.fstat(file.fileno()).st_size))
            return file.read(max_bytes)

    def _path(self, number: int) -> Path:
        for known, path in self._list_folders():
            if known == number:
                return path
        raise NoIncident(f"cannot find incident {number}: there is none, or it has expired")

    def _list_folders(self) -> list[tuple[int, Path]]:
        try:
            matches = [(_NAME.fullmatch(path.name), path) for path in self.folder.iterdir()]
        except OSError:
            return []
        return sorted((int(match[1]), path) for match, path in matches if match)

    def _prune(self, max_count: int) -> None:
        """Remove the oldest incidents until at most `max_count` and `max_bytes` are left."""
        kept = self._list_folders()
        sizes = {path: _size(path) for _, path in kept}
        while kept and (len(kept) > max_count or sum(sizes[p] for _, p in kept) > self._max_bytes):
            shutil.rmtree(kept.pop(0)[1], ignore_errors=True)


def _size(path: Path) -> int:
    try:
        return sum(file.stat().st_size for file in path.iterdir())
    except OSError:
        return 0
