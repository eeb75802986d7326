"""Durations of a slot's starts: of the current one, and of those stored in the state folder."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from caovand.adapters.files import state_file
from caovand.adapters.system import wall_clock
from caovand.core.lifecycle.events import LifecycleEvent
from caovand.core.lifecycle.state import Snapshot, State
from caovand.core.reporting import starts
from caovand.core.reporting.starts import CompletedStart, StartInProgress


class Starts:
    """Stores starts in the file `path`; `launches` are phases that end by launching a process."""

    def __init__(self, path: Path, launches: AbstractSet[str]) -> None:
        self._path, self._launches = path, launches
        self._course: StartInProgress | None = None
        self._kept: tuple[CompletedStart, ...] = ()
        self._read = False
        self.latest: tuple[CompletedStart, CompletedStart | None] | None = None
        """The last start that led to serving, and the one to compare it with."""

    def follow(
        self, before: Snapshot, after: Snapshot, event: LifecycleEvent, figures: Mapping[str, Any]
    ) -> bool:
        """Process a step of the machine; return whether it finished a start, which is then the
        latest.

        Raises OSError if the earlier starts cannot be read now: this one is then not counted.
        """
        course = self._course = starts.follow(self._course, before, after, event, self._launches)
        if course is None or after.state is State.STARTING or after.plan is None:
            return False
        self._course = None
        plan = after.plan.identity
        self._load()
        start = starts.finish_start(course, plan, wall_clock.now(), figures)
        self.latest = start, starts.earlier_start(self._kept, plan)
        self._kept = (*self._kept, start)[-starts.MAX_STARTS :]
        return True

    def remaining_s(self, plan: str, elapsed_s: float) -> float | None:
        """Estimated remaining time of a start of this plan; None if unknown."""
        try:
            self._load()
        except OSError:
            return None
        return starts.remaining_s(self._kept, plan, elapsed_s)

    def _load(self) -> None:
        if not self._read:
            self._kept = starts.from_document(state_file.read_or_none(self._path)) or ()
            self._read = True

    def remember(self) -> None:
        """Store the starts for the next daemon; raises OSError."""
        state_file.write(self._path, starts.to_document(self._kept))

    def describe(self) -> dict[str, Any] | None:
        """The latest start and the one before, for the status; None before the first."""
        return starts.describe(*self.latest) if self.latest else None
