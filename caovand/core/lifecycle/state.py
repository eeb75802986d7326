"""The state of one slot, and the thresholds for the state machine's decisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Literal

from caovand.core.config.schema import WatchSection
from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import Decision
from caovand.core.lifecycle.events import Action
from caovand.core.lifecycle.recurrence import NO_RECURRENCE, Recurrence
from caovand.core.plan import Plan


class State(str, Enum):
    """The daemon's activity for its engine.

    STOPPED -> STARTING -> SERVING -> RECYCLING -> BACKOFF -> STARTING ... STARTING: inspect, plan,
    spawn, phases, proof. HOLD: waits for an outside cause to pass. RECYCLING: stops a child so that
    another can run. FAILED: the operator must act.
    """

    STOPPED = "STOPPED"
    STARTING = "STARTING"
    SERVING = "SERVING"
    RECYCLING = "RECYCLING"
    BACKOFF = "BACKOFF"
    HOLD = "HOLD"
    FAILED = "FAILED"
    STOPPING = "STOPPING"


STATES_WITH_CHILD = frozenset({State.SERVING, State.RECYCLING, State.STOPPING})
"""A child survives into these states; STARTING begins without one."""


@dataclass(frozen=True)
class Ending:
    """The next step once nothing of the child is left; only RECYCLING and STOPPING have one.

    RECYCLING leads to start, backoff, hold or fail; the attempt after that uses `next_plan` or
    makes a new plan. STOPPING leads to stopped, or also quits the daemon.
    """

    after_stop: Literal["start", "backoff", "hold", "fail", "stopped", "quit"]
    next_plan: Plan | None = None

    @property
    def state(self) -> State:
        """The state in which the child is stopped."""
        return State.STOPPING if self.after_stop in ("stopped", "quit") else State.RECYCLING


@dataclass(frozen=True)
class Snapshot:
    """The machine's complete state; `deadline`, `since` and `found_at` are monotonic seconds.

    `inspecting` means that inspection number `inspection` has not been answered yet. The next
    attempt uses `next_plan`, or makes a new plan. `found_at` is when `finding` last occurred.
    `failures` counts consecutive failures of `failed_plan` and lengthens waits; `excused` of them
    do not count against it. `fallback` served until a planned change replaced it, and returns
    unless the new plan is proven. `abandoned` is the identity of a plan that failed such a trial:
    only the operator retries it.
    """

    state: State = State.STOPPED
    since: float = 0.0
    deadline: float | None = None
    generation: int = 0
    inspection: int = 0
    inspecting: bool = False
    plan: Plan | None = None
    next_plan: Plan | None = None
    spawned: bool = False
    ending: Ending | None = None
    phase: str = ""
    progress: float | None = None
    detail: str = ""
    failures: int = 0
    excused: int = 0
    failed_plan: str = ""
    recurrence: Recurrence = NO_RECURRENCE
    finding: Finding | None = None
    found_at: float | None = None
    remedy: Decision | None = None
    refusal: Finding | None = None
    fallback: Plan | None = None
    abandoned: str = ""
    reason: str = ""
    spawns: int = 0

    @property
    def rechecking(self) -> bool:
        """Whether HOLD is checking if the engine can start now."""
        return self.inspecting and self.state is State.HOLD

    @property
    def replanning(self) -> bool:
        """Whether a new plan is being made while a child lives."""
        return self.inspecting and self.spawned

    @property
    def quitting(self) -> bool:
        """Whether the daemon exits once the child is gone."""
        return self.ending is not None and self.ending.after_stop == "quit"

    def is_due(self, at: float) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and at >= self.deadline

    def enter(self, state: State, at: float, deadline: float | None, **changes: Any) -> Snapshot:
        """Change to `state`, dropping what belongs to the previous state alone."""
        dropped = {
            "inspecting": False, "spawned": self.spawned and state in STATES_WITH_CHILD,
            "ending": None, "phase": "", "progress": None, "detail": "",
        }  # fmt: skip
        return replace(self, state=state, since=at, deadline=deadline, **{**dropped, **changes})

    @property
    def is_reverting(self) -> bool:
        """Whether the next attempt uses the plan that served before the change."""
        return _is_same(self.next_plan, self.fallback)

    def with_finding(self, finding: Finding, at: float) -> Snapshot:
        """Remember `finding` as the latest failure."""
        return replace(self, finding=finding, found_at=at)

    def without_changes(self) -> Snapshot:
        """Forget the refused change and the plan that served before it."""
        return replace(self, refusal=None, fallback=None, abandoned="")

    def without_failures(self) -> Snapshot:
        """Reset all failure counts: the operator requested another attempt."""
        return replace(self, failures=0, failed_plan="", recurrence=NO_RECURRENCE)


def _is_same(plan: Plan | None, other: Plan | None) -> bool:
    return plan is not None and other is not None and plan.identity == other.identity


Judge = Callable[[Plan, Finding, int], Decision]


def same_again(plan: Plan, finding: Finding, repeats: int) -> Decision:
    """Retry the same plan after every failure that permits another attempt."""
    return Decision("again")


@dataclass(frozen=True)
class LifecycleRules:
    """The operator's thresholds, and `judge`, which decides what follows a failure.

    `judge` takes the plan, the finding, and how often that plan has failed in this way. Answers in
    progress get `gateway_drain_s` before a planned stop.
    """

    watch: WatchSection = field(default_factory=WatchSection)
    gateway_drain_s: float = 0.0
    judge: Judge = same_again


TransitionResult = tuple[Snapshot, tuple[Action, ...]]
