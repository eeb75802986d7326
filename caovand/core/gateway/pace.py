"""Estimate how fast an engine answers, and how long a request waits for it."""

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
        """Seconds that the next request waits at an engine with `ahead` requests.

        `at_once` is the number that it answers at a time; None, for unknown, means no wait.
        """
        if at_once is None:
            return 0.0
        return max(ahead - at_once + 1, 0) / at_once * self._mean_s
