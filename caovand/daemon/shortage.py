"""Report once that a resource limit delays work, and once that this is over."""

from __future__ import annotations

import time
from collections.abc import Callable

from caovand.core import limits

OVER_S = 15.0  # without hitting the limit: enough for several retries of each kind of work


class Shortage:
    """`text` is the work that is impossible now and why, else ""; `notice` reports changes."""

    def __init__(
        self, notice: Callable[[str, str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.text = ""
        self._notice, self._clock = notice, clock
        self._at = 0.0

    def covers(self, doing: str, problem: BaseException) -> bool:
        """Whether `problem` comes from a resource limit: the work should then be retried."""
        limit = limits.limit_reached(problem)
        if not limit:
            return False
        self._at = self._clock()
        if not self.text:
            self.text = f"cannot {doing}: {limit}; retrying"
            self._notice("noticed", self.text)
        return True

    def refresh(self) -> None:
        """Report the end of the shortage once it has been over for a while."""
        if self.text and self._clock() - self._at >= OVER_S:
            self.text = ""
            self._notice("noticed", "descriptors, threads and memory suffice again")
