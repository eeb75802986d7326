"""Durations of a start's phases: during the start, and of earlier starts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from caovand.core.document import PartReader, listed, number, read_or_none, record, string, table
from caovand.core.lifecycle.events import LifecycleEvent, Progressed
from caovand.core.lifecycle.state import Snapshot, State

MAX_STARTS = 8
MAX_PARTS, MAX_NAME = 32, 64
LAUNCH = "launch"


@dataclass(frozen=True)
class StartInProgress:
    """A start in progress: the seconds of finished phases, and when the current one began.

    `moved` is the time of its latest progress.
    """

    generation: int
    phase: str
    since: float
    moved: float
    spent: Mapping[str, float] = field(default_factory=dict)

    def enter(self, phase: str, at: float, launches: AbstractSet[str]) -> StartInProgress:
        """Enter another phase; if the previous one is in `launches`, its final silence counts as
        launching a process."""
        split = max(self.since, self.moved) if self.phase in launches else at
        spent = _with(self.spent, self.phase, split - self.since)
        spent = _with(spent, LAUNCH, at - split)
        return replace(self, phase=phase, since=at, moved=at, spent=spent)


@dataclass(frozen=True)
class CompletedStart:
    """A completed start: its phases in seconds, and the durations in the engine's log.

    `plan` is the plan's identity, `at` Unix time.
    """

    plan: str
    at: float
    seconds: float
    phases: Mapping[str, float]
    reported: Mapping[str, float] = field(default_factory=dict)


def follow(
    course: StartInProgress | None,
    before: Snapshot,
    after: Snapshot,
    event: LifecycleEvent,
    launches: AbstractSet[str],
) -> StartInProgress | None:
    """The course after a step of the state machine; None if no start is in progress or just
    finished."""
    if after.state is not State.STARTING:
        serves = after.state is State.SERVING and before.state is State.STARTING
        return course.enter("", event.at, launches) if course and serves else None
    if course is None or course.generation != after.generation:
        return StartInProgress(after.generation, after.phase, event.at, event.at)
    if after.phase != course.phase:
        return course.enter(after.phase, event.at, launches)
    if isinstance(event, Progressed) and not event.heartbeat:
        return replace(course, moved=event.at)
    return course


def finish_start(
    course: StartInProgress, plan: str, at: float, figures: Mapping[str, Any]
) -> CompletedStart:
    """Finish a start; keep only the engine's values that are in seconds."""
    reported = {
        name: float(value)
        for name, value in dict(figures).items()
        if name.endswith("_s") and isinstance(value, (int, float)) and math.isfinite(value)
    }
    total = sum(course.spent.values())
    return CompletedStart(plan, at, total, dict(course.spent), reported)


def earlier_start(starts: Sequence[CompletedStart], plan: str) -> CompletedStart | None:
    """The latest start of this plan, else of any plan; None without one."""
    same = [start for start in starts if start.plan == plan]
    return next(reversed(same or [*starts]), None)


def remaining_s(starts: Sequence[CompletedStart], plan: str, elapsed_s: float) -> float | None:
    """Estimated remaining time of a start of this plan; None if unknown.

    A start that already takes longer than the last one is not comparable.
    """
    last = earlier_start(starts, plan)
    return last.seconds - elapsed_s if last and last.seconds > elapsed_s else None


def describe(start: CompletedStart, before: CompletedStart | None) -> dict[str, Any]:
    """Both starts as plain values, for the status."""
    if before is None:
        return {**_plain(start), "before": None}
    return {**_plain(start), "before": {**_plain(before), "same_plan": before.plan == start.plan}}


def duration_text(seconds: float, parts: Mapping[str, float]) -> str:
    """Format a duration with its parts: "96 s: launch 41, load 22, other 3"."""
    whole = {name: round(spent) for name, spent in parts.items() if round(spent) >= 1}
    if (rest := round(seconds) - sum(whole.values())) >= 1:
        whole["other"] = rest
    named = ", ".join(f"{name} {spent}" for name, spent in whole.items())
    return f"{seconds:.0f} s" + (f": {named}" if named else "")


def start_text(start: CompletedStart, before: CompletedStart | None) -> str:
    """Describe a finished start next to the previous one."""
    text = f"the start took {duration_text(start.seconds, start.phases)}"
    if before is None:
        return text
    which = (
        "the previous one" if before.plan == start.plan else "the previous one, with another plan,"
    )
    return f"{text}; {which} took {duration_text(before.seconds, before.phases)}"


def to_document(starts: Sequence[CompletedStart]) -> dict[str, Any]:
    """Encode the latest of these starts for the next daemon."""
    return {"starts": [asdict(start) for start in starts[-MAX_STARTS:]]}


def from_document(document: Any) -> tuple[CompletedStart, ...] | None:
    """Decode starts; None if the document is invalid."""
    return read_or_none(_STARTS, document)


def _with(spent: Mapping[str, float], phase: str, seconds: float) -> dict[str, float]:
    if not seconds > 0:
        return dict(spent)
    return {**spent, phase: spent.get(phase, 0.0) + seconds}


def _plain(start: CompletedStart) -> dict[str, Any]:
    def rounded(parts: Mapping[str, float]) -> dict[str, float]:
        return {name: round(spent, 1) for name, spent in parts.items()}

    return {
        "seconds": round(start.seconds, 1),
        "at": round(start.at),
        "phases": rounded(start.phases),
        "reported": rounded(start.reported),
    }


_SECONDS = number(0, 1e12)
_PARTS = table(_SECONDS, MAX_PARTS, string(MAX_NAME))
_START = record(CompletedStart, {
    "plan": string(),
    **dict.fromkeys(("at", "seconds"), _SECONDS),
    **dict.fromkeys(("phases", "reported"), _PARTS),
})  # fmt: skip
_STARTS: PartReader[tuple[CompletedStart, ...]] = record(
    lambda starts: starts, {"starts": listed(_START, MAX_STARTS)}, may_have_more=True
)
