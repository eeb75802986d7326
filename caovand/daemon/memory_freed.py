"""Detect that others have freed memory, at a moment when a restart interrupts nobody."""

from __future__ import annotations

from caovand.core.facts.occupancy import Used, has_memory_again
from caovand.core.figures.track import Track, TrackPoint
from caovand.daemon.tuning import Serving, is_busy


class MemoryFreed:
    """Follows one slot's engine: `poll` is called every few seconds."""

    def __init__(self) -> None:
        self._generation = -1
        self._before: TrackPoint | None = None
        self._busy_at = 0.0

    def poll(
        self, serving: Serving | None, track: Track, others_mib: Used | None, quiet_s: float
    ) -> bool:
        """Whether the full plan is worth a restart now.

        True if the plan was degraded for lack of memory and serves stably, others use less memory
        now (`others_mib`, None if unknown), and no request came for `quiet_s`.
        """
        latest = track.recent[-1] if track.last else None
        if serving is None or latest is None:
            self._before = None
            return False
        before, self._before = self._before, latest
        new = serving.generation != self._generation
        self._generation = serving.generation
        if new or before is None or is_busy(before, latest, serving.probed_at):
            self._busy_at = latest.at
        plan = serving.plan
        freed = (
            others_mib is not None
            and plan.degraded
            and has_memory_again(plan.others_mib, others_mib)
        )
        settled = serving.stable and not serving.replanning
        return freed and settled and latest.at - self._busy_at >= quiet_s
