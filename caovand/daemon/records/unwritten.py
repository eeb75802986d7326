"""Watch for unwritable disks: a full or read-only disk affects only its own files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from caovand.adapters.engine.pump import RotatedFile
from caovand.adapters.files.directories import Directories

LIMIT_S = 5.0


class Unwritten:
    """`texts` names what cannot be written now, and the remedy; `notice` reports each change once.

    Lost engine output stays lost, so it is reported once per run of the daemon.
    """

    def __init__(self, directories: Directories, notice: Callable[[str, str], None]) -> None:
        self.texts: Mapping[Path, str] = {}
        self._directories, self._notice = directories, notice
        self._checking: asyncio.Future[dict[Path, str]] | None = None
        self._loss_noticed = False

    async def check(self, files: Iterable[RotatedFile]) -> None:
        """Check the disks, and whether the latest write to one of `files` failed."""
        files = tuple(files)
        lossy = [file for file in files if file.lost_bytes]
        if lossy and not self._loss_noticed:
            self._loss_noticed = True
            text = (
                f"cannot write all of the engine's output to {lossy[0].path}: its disk is full or"
                " too slow; caovanctl status counts the lost bytes"
            )
            self._notice("noticed", text)
        if self._checking is not None and not self._checking.done():
            return  # a hung disk blocks only one thread
        checking = asyncio.ensure_future(asyncio.to_thread(self._directories.unwritable))
        self._checking = checking
        await asyncio.wait([checking], timeout=LIMIT_S)
        if not checking.done():
            return
        now = checking.result()
        before, self.texts = self.texts, now
        for file in files:
            folder = file.path.parent
            if folder in before and folder not in now:
                file.problem = ""  # a quiet engine writes nothing that would clear it
            if file.problem and folder not in now:
                lost = "its lines are lost; check that disk"
                now[file.path] = f"cannot write {file.path}: {file.problem}; {lost}"
        for path in now.keys() - before.keys():
            self._notice("noticed", now[path])
        for path in before.keys() - now.keys():
            self._notice("noticed", f"{path} is writable again")
