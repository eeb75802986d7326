"""What the daemon cannot write: a full or read-only disk costs what is kept there, nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from caovand.adapters.directories import Directories
from caovand.adapters.pump import RotatedFile

LIMIT_S = 5.0


class Unwritten:
    """`texts` is what cannot be written now, and the remedy; `notice` hears of each change once."""

    def __init__(self, directories: Directories, notice: Callable[[str, str], None]) -> None:
        self.texts: Mapping[Path, str] = {}
        self._directories, self._notice = directories, notice
        self._looking: asyncio.Future[dict[Path, str]] | None = None

    async def look(self, file: RotatedFile) -> None:
        """Ask the disks, and see whether the latest write to `file` failed."""
        if self._looking is not None and not self._looking.done():
            return  # a disk that hangs keeps one thread
        looking = asyncio.ensure_future(asyncio.to_thread(self._directories.unwritable))
        self._looking = looking
        await asyncio.wait([looking], timeout=LIMIT_S)
        if not looking.done():
            return
        now = looking.result()
        before, self.texts = self.texts, now
        folder = file.path.parent
        if folder in before and folder not in now:
            file.problem = ""  # a quiet engine writes nothing that would show that it is over
        if file.problem and folder not in now:
            lost = "its lines are lost: look at that disk"
            now[file.path] = f"cannot write {file.path}: {file.problem}; {lost}"
        for path in now.keys() - before.keys():
            self._notice("noticed", now[path])
        for path in before.keys() - now.keys():
            self._notice("noticed", f"{path} can be written again")
