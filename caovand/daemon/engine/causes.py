"""Find why an engine failed: from its output, and from the processes that have taken its memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from caovand.adapters.engine.pump import Ring
from caovand.core.engine.log import Log
from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import MEMORY_FAILURES
from caovand.daemon.engine.reading import find_cause

LOG_BYTES = 4 << 20
FAILURE_CONTEXT_LINES = 400  # lines around the first one that reports a failed process


class KeptLines:
    """The last lines of one child, and those around its first failure; `log` parses them.

    `ring` also holds lines of earlier children. After a failure, each pending request adds a
    traceback, and those may fill the ring.
    """

    def __init__(self, log: Log, ring: Ring) -> None:
        self._log, self._ring = log, ring
        self._begin = ring.count  # the ring's number of the line before the child's first
        self._recent: deque[str] = deque(maxlen=log.near)
        self._failure: tuple[str, ...] = ()
        self._seen = self._failure_end = self._begin

    @property
    def failed(self) -> bool:
        """Whether one of its processes has reported a failure."""
        return bool(self._failure)

    def recovered(self) -> None:
        """Note that the start has recovered from its failure; the next failure counts as the
        first."""
        self._failure = ()

    def keep(self, line: str, texts: Sequence[str]) -> None:
        """Add the next line with its `texts`; called from the log pump's thread."""
        self._seen += 1
        if not self._failure:
            self._recent.append(line)
            if any(map(self._log.announces, texts)):
                self._failure, self._failure_end = tuple(self._recent), self._seen
        elif len(self._failure) < FAILURE_CONTEXT_LINES:
            self._failure, self._failure_end = (*self._failure, line), self._seen

    def all(self) -> list[str]:
        """The lines still in the ring, and those around the first failure."""
        kept, last = self._ring.since(self._begin, LOG_BYTES)
        printed = last - self._begin
        if not self._failure or len(kept) == printed >= self._failure_end - self._begin:
            return kept
        return [*self._failure, *self._ring.since(self._failure_end, LOG_BYTES)[0]]


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
            finding, reason = await asyncio.to_thread(
                find_cause, self._log, lines, phase, alive=alive
            )
        except (RuntimeError, MemoryError) as problem:  # too many threads
            finding, reason = None, str(problem) or type(problem).__name__
        if reason:
            self._notice(
                "noticed", f"cannot find the cause of the failure in the engine's log: {reason}"
            )
        if finding is None:
            return None
        self._evidence = lines
        if finding.failure in MEMORY_FAILURES and self._occupied is not None:
            who = await self._occupied()
            finding = replace(finding, text=f"{finding.text}; {who}") if who else finding
        return finding

    async def of_stopped(self, finding: Finding) -> Finding | None:
        """The cause that a process of a stalled engine reports, combined with `finding`."""
        cause = await self.find(finding.phase, alive=True)
        return cause and replace(cause, text=f"{cause.text} ({finding.text})")
