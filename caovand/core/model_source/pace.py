"""The rate of a download over the last seconds, and the time left at that rate."""

from __future__ import annotations

from collections import deque

from caovand.core.units import MIB

WINDOW_S = 20.0


class DownloadRate:
    """Measures a download's rate; the caller passes the time."""

    def __init__(self) -> None:
        self._came: deque[tuple[float, int]] = deque()

    def add(self, at_s: float, done_bytes: int) -> None:
        """Record that `done_bytes` in total were present at `at_s`."""
        self._came.append((at_s, done_bytes))
        while self._came[0][0] < at_s - WINDOW_S:
            self._came.popleft()

    def text(self, total_bytes: int) -> str:
        """Format rate and time left, such as "35.2 MiB/s, 12 min left"; empty before there is a
        rate."""
        if not self._came:
            return ""
        (first_s, first), (last_s, last) = self._came[0], self._came[-1]
        if last_s <= first_s or last <= first:
            return ""
        rate = (last - first) / (last_s - first_s)
        left = duration(max(total_bytes - last, 0) / rate)
        return f"{rate / MIB:.1f} MiB/s, {left} left"


def duration(seconds: float) -> str:
    """Format a duration in one or two units."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
