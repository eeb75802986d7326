"""A slot's metrics: every scrape of its engines passes through here once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from caovand.core.figures import track
from caovand.core.figures.counters import Reading
from caovand.core.figures.track import Track
from caovand.core.lifecycle.cause import cause_of_end
from caovand.core.lifecycle.events import LifecycleEvent
from caovand.core.lifecycle.state import Snapshot
from caovand.daemon.shared import now

OnReading = Callable[[Reading], None]


class SlotFigures:
    """Accumulates the engines' counters, and the reasons for restarts."""

    def __init__(self) -> None:
        self.track = Track()
        self.restarts: Counter[str] = Counter()
        self._cause = ""
        self._engine: object = None

    def engine(self) -> OnReading:
        """Start with a new engine; return the function that accepts its readings."""
        self.track = track.begin_engine(self.track)
        mark = self._engine = object()

        def take(reading: Reading) -> None:
            if self._engine is mark:  # a scrape may outlive its engine
                self.track = track.follow(self.track, reading)

        return take

    def gone(self) -> None:
        """Note that the engine has exited: no readings come until another one answers."""
        self._engine = None
        self.track = track.begin_engine(self.track)

    def lived(self, before: Snapshot, event: LifecycleEvent, after: Snapshot) -> str:
        """Count restarts by the cause of the engine's end; return this one's cause."""
        self._cause = cause_of_end(before, event, after) or self._cause
        if not after.spawns > before.spawns > 0:
            return ""
        self.restarts[self._cause] += 1
        return self._cause

    @property
    def idle(self) -> bool:
        """Whether the engine had no request at its last reading and none since the previous one."""
        if self.track.last is None or len(self.track.recent) < 2:
            return False
        before, latest = self.track.recent[-2:]
        quiet = latest.total.generation_tokens == before.total.generation_tokens
        return quiet and not latest.running and not latest.waiting

    def describe(self) -> dict[str, Any]:
        """The metrics as a document."""
        return {**track.describe(self.track, now()), "restarts": dict(self.restarts)}

    def recent(self) -> dict[str, list[float | None]]:
        """The readings of the last minutes, as lists."""
        return track.series(self.track, now())
