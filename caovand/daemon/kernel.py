"""The kernel's log lines, read once for all slots: kept for incidents, and passed on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from caovand.adapters.system.kernel_log import KernelLog

MAX_LINES = 200


class KernelLines:
    """Reads the kernel's log: `kept` are the latest lines; each of `listeners` receives new
    ones."""

    def __init__(self) -> None:
        self.kept: deque[str] = deque(maxlen=MAX_LINES)
        self.listeners: list[Callable[[Sequence[str]], None]] = []
        self._log = KernelLog()

    def read(self) -> None:
        """Read new lines; never waits."""
        lines = self._log.read()
        self.kept.extend(lines)
        for listener in self.listeners:
            listener(lines)
