"""The retained lines of one child: the last ones, and those around its first failure.

After a failure, each pending request adds a traceback, and those may fill the ring.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from caovand.adapters.engine.pump import Ring
from caovand.core.engine.log import Log

LOG_BYTES = 4 << 20
FAILURE_CONTEXT_LINES = 400  # lines around the first one that reports a failed process


class KeptLines:
    """The child's lines in `ring`, which also holds lines of earlier children; `log` parses
    them."""

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
        """The start has recovered from its failure: the next failure counts as the first."""
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
