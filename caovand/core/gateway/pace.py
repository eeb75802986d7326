"""How fast an engine answers, and how long a request is expected to wait for it."""

from __future__ import annotations

SMOOTHING = 0.1


class Pace:
    """The moving mean of the seconds that an engine takes for an answer."""

    def __init__(self) -> None:
        self._mean_s = 0.0

    def answered(self, took_s: float) -> None:
        """Count an answer."""
        self._mean_s += (took_s - self._mean_s) * (SMOOTHING if self._mean_s else 1.0)

    def wait_s(self, ahead: int, at_once: int | None) -> float:
        """How long the next request waits at an engine that has `ahead` requests already.

        `at_once` is how many it answers at a time, None if that is unknown: nobody waits then.
        """
        if at_once is None:
            return 0.0
        return max(ahead - at_once + 1, 0) / at_once * self._mean_s
