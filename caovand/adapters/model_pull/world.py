"""The effects of a download outside files and the hub; tests replace them."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from caovand.core.model_source.pace import DownloadRate


@dataclass(frozen=True)
class World:
    """Clock, chance, disk and screen; `progress` takes done, total and a text."""

    say: Callable[[str], None]
    progress: Callable[[int, int, str], None]
    sleep: Callable[[float], None] = time.sleep
    monotonic_s: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free


@dataclass
class TransferMeter:
    """Show the progress of one step: bytes of `total_bytes`, with rate and time left."""

    world: World
    total_bytes: int
    done_bytes: int = 0
    name: str = ""
    _pace: DownloadRate = field(default_factory=DownloadRate)
    _shown_s: float = -1.0

    def begin(self, name: str) -> None:
        """Start a file: the bytes that follow belong to it."""
        self.name = name

    def skip(self, count: int) -> None:
        """Add or subtract bytes that do not count towards the rate."""
        self.done_bytes += count
        self._pace = DownloadRate()

    def add(self, count: int) -> None:
        """Add or subtract bytes; the display is updated a few times a second."""
        self.done_bytes += count
        now = self.world.monotonic_s()
        if now - self._shown_s < 0.25 and self.done_bytes < self.total_bytes:
            return
        self._shown_s = now
        self._pace.add(now, self.done_bytes)
        text = ", ".join(filter(None, (self.name, self._pace.text(self.total_bytes))))
        self.world.progress(self.done_bytes, self.total_bytes, text)
