"""Find why an engine failed: from its output, and from who has taken its memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from caovand.adapters.engine.pump import Ring
from caovand.core.engine.log import Log
from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import OF_MEMORY
from caovand.daemon.engine.kept_lines import KeptLines
from caovand.daemon.engine.reading import find_cause


class Causes:
    """Finds causes in a child's lines that are still in `ring`.

    `occupied` names the processes that have taken memory of its cards since planning, "" if none.
    """

    def __init__(
        self,
        log: Log,
        ring: Ring,
        notice: Callable[[str, str], None],
        occupied: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        self.kept = KeptLines(log, ring)
        self._log, self._notice, self._occupied = log, notice, occupied
        self._evidence: Sequence[str] = ()

    def lines(self) -> list[str]:
        """The lines still available, including those around the first failure."""
        return self.kept.all()

    def evidence(self) -> Sequence[str]:
        """The lines in which a cause was found, else all available ones."""
        return self._evidence or self.lines()

    async def find(self, phase: str, *, alive: bool = False) -> Finding | None:
        """The cause of a failure in this phase; None if the log shows none."""
        lines = self.lines()
        try:
            finding, why = await asyncio.to_thread(find_cause, self._log, lines, phase, alive=alive)
        except (RuntimeError, MemoryError) as problem:  # too many threads
            finding, why = None, str(problem) or type(problem).__name__
        if why:
            self._notice("noticed", f"cannot find in the engine's log why it failed: {why}")
        if finding is None:
            return None
        self._evidence = lines
        if finding.failure in OF_MEMORY and self._occupied is not None:
            who = await self._occupied()
            finding = replace(finding, text=f"{finding.text}; {who}") if who else finding
        return finding

    async def of_stopped(self, finding: Finding) -> Finding | None:
        """The cause that a process of a stalled engine reports, combined with `finding`."""
        cause = await self.find(finding.phase, alive=True)
        return cause and replace(cause, text=f"{cause.text} ({finding.text})")
