"""Remove the engine's stale files without ever blocking the loop.

/proc of a hung process or a faulty disk may not respond, so each scan has a time limit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from caovand.adapters.child import Child
from caovand.adapters.files.directories import Directories
from caovand.adapters.files.stale_files import StaleFiles
from caovand.adapters.privileges import engine_user
from caovand.core import limits
from caovand.preparation import memories

LIMIT_S = 5.0


class StaleFileCleaner:
    """Temporary files and shared memory of the engine; `notice` reports files that could not be
    removed."""

    def __init__(
        self, directories: Directories, slot: str, notice: Callable[[str, str], None]
    ) -> None:
        state = directories.state
        self._files = StaleFiles(
            places(directories),
            memories.find(state, memories.FILES, slot),
            mark=memories.mark(state, slot),
        )
        self._notice = notice
        self._scanning: asyncio.Future[None] | None = None

    @property
    def folder(self) -> Path | None:
        """The engine's TMPDIR, if there is one."""
        return self._files.folder if self._files.made else None

    async def begin(self) -> None:
        """Prepare for an engine, once the earlier one is completely gone."""
        await asyncio.to_thread(self._files.begin)

    async def scan(self, child: Child | None) -> None:
        """Record which files the engine uses."""
        if child is None or (self._scanning is not None and not self._scanning.done()):
            return
        pids = [process.pid for process in child.refresh()]
        self._scanning = asyncio.ensure_future(asyncio.to_thread(self._files.look, pids))
        await _in_time(self._scanning)

    async def take_over(self, pids: Sequence[int]) -> None:
        """Record which files these processes use; their daemon was killed."""
        scan = asyncio.ensure_future(asyncio.to_thread(self._files.take_over, pids))
        await _in_time(scan)

    async def remove(self) -> None:
        """Remove the stale files of an engine that has exited."""
        left: tuple[str, ...] = ()
        with contextlib.suppress(asyncio.TimeoutError):
            left = await asyncio.wait_for(asyncio.to_thread(self._files.remove), LIMIT_S)
        if left:
            text = f"cannot remove files that the engine left behind: {', '.join(left[:5])}"
            self._notice("noticed", text)


def places(directories: Directories) -> tuple[Path, ...]:
    """Candidates for the engine's temporary folder, best first.

    Compilers execute files there, which /run may forbid, so the cache comes first. An engine that
    runs as a separate user can create folders only in the cache.
    """
    own = engine_user.current() is None
    return (directories.cache, directories.runtime) if own else (directories.cache,)


async def _in_time(scan: asyncio.Future[None]) -> None:
    """Wait for a scan, within a limit; a failed one is repeated later."""
    done, _ = await asyncio.wait([scan], timeout=LIMIT_S)
    for one in done:
        if not limits.limit_reached(one.exception()):
            one.result()
