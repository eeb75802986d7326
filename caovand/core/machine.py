"""The state machine: what one event does to one snapshot, and what must be done about it.

`step(snapshot, event, rules)` is pure and total. EDGES has one row for each (state, event) that
means something, with the states it may enter; any other pair changes nothing. Events of a child
carry its generation, events of an inspection its number: late ones are dropped. Only Spawn makes
a child, only STARTING asks for it, and STARTING is entered only when the child before is gone.

    STOPPED -> STARTING -> SERVING -> RECYCLING -> BACKOFF -> STARTING ...
    STARTING: inspect, plan, spawn, phases, proof.    HOLD: waits for something outside.
    RECYCLING: ends a child so that another can run.  FAILED: the operator must act.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Literal

from caovand.core.backoff import delay
from caovand.core.events import (
    Action,
    End,
    Event,
    Exited,
    Failed,
    Gone,
    Inspect,
    OfChild,
    OfInspection,
    Planned,
    Progressed,
    Proven,
    Quit,
    Reconfigured,
    Refused,
    Restart,
    Spawn,
    Start,
    Stop,
    Tick,
    Unkillable,
)
from caovand.core.failure import Failure, Finding
from caovand.core.ladder import Decision
from caovand.core.plan import Plan
from caovand.core.recurrence import NEVER, Recurrence
from caovand.core.stall import stall_s


class State(str, Enum):
    """What the daemon is doing about its engine."""

    STOPPED = "STOPPED"
    STARTING = "STARTING"
    SERVING = "SERVING"
    RECYCLING = "RECYCLING"
    BACKOFF = "BACKOFF"
    HOLD = "HOLD"
    FAILED = "FAILED"
    STOPPING = "STOPPING"


Judge = Callable[[Plan, Finding, int], Decision]


def same_again(plan: Plan, finding: Finding, repeats: int) -> Decision:
    """Judge every failure worth another attempt of the same plan."""
    return Decision("again")


@dataclass(frozen=True)
class Rules:
    """The operator's thresholds, in seconds; `judge` says what a failure calls for.

    It is called with the plan, the finding and how often that plan has failed in this way.
    """

    failures: int = 5
    stall_s: float | None = None
    stable_after_s: float = 600.0
    drain_s: float = 10.0
    recheck_s: float = 15.0
    judge: Judge = same_again


# How long ending a child takes at most: TERM while it starts, then KILL and the proof; after that
# the cards' memory has a minute to come back.
STARTING_GRACE_S = 2.0
DRAIN_MARGIN_S = 5.0
KILL_S = 100.0
# What a watcher may find wrong with an engine that still finishes requests: one that is slow, and
# one that has lost some process to the kernel.
LIVES_ON: frozenset[Failure] = frozenset({"draft-collapse", "host-oom"})
# How long an inspection may take: a cold probe imports all of vLLM.
INSPECT_S = 300.0
# A plan that keeps failing for something outside is tried again this often at least.
HOLD_S = 300.0


@dataclass(frozen=True)
class Snapshot:
    """Everything the machine knows; `deadline`, `since` and `found_at` are monotonic seconds.

    `found_at` is when `finding` was last met; `looking` says that HOLD waits for an inspection.
    `failures` of `failed_plan` in a row make waits longer; `spared` of them count for no more.
    """

    state: State = State.STOPPED
    since: float = 0.0
    deadline: float | None = None
    generation: int = 0
    inspection: int = 0
    plan: Plan | None = None
    pending: Plan | None = None
    spawned: bool = False
    replanning: bool = False
    quitting: bool = False
    then: Literal["start", "backoff", "hold", "fail"] = "start"
    phase: str = ""
    progress: float | None = None
    detail: str = ""
    failures: int = 0
    spared: int = 0
    failed_plan: str = ""
    recurrence: Recurrence = NEVER
    finding: Finding | None = None
    found_at: float | None = None
    remedy: Decision | None = None
    looking: bool = False
    refusal: Finding | None = None
    reason: str = ""
    spawns: int = 0


Result = tuple[Snapshot, tuple[Action, ...]]
Row = tuple[Callable[[Snapshot, Any, Rules], Result], frozenset[State]]


def step(snapshot: Snapshot, event: Event, rules: Rules) -> Result:
    """What `event` makes of `snapshot`, and what has to be done."""
    if isinstance(event, OfChild) and event.generation != snapshot.generation:
        return snapshot, ()
    if isinstance(event, OfInspection) and event.inspection != snapshot.inspection:
        return snapshot, ()
    row = EDGES.get((snapshot.state, type(event)))
    return row[0](snapshot, event, rules) if row else (snapshot, ())


def _enter(
    s: Snapshot, state: State, at: float, deadline: float | None, **changes: Any
) -> Snapshot:
    cleared = {"replanning": False, "phase": "", "progress": None, "detail": "", "looking": False}
    return replace(s, state=state, since=at, deadline=deadline, **{**cleared, **changes})


def _met(s: Snapshot, finding: Finding, at: float) -> Snapshot:
    return replace(s, finding=finding, found_at=at)


def _inspect(s: Snapshot) -> Result:
    s = replace(s, inspection=s.inspection + 1)
    return s, (Inspect(s.inspection, s.pending),)


def _start(s: Snapshot, event: Event, rules: Rules, **changes: Any) -> Result:
    """A new attempt: a new generation, and first of all an inspection."""
    s = _enter(
        s, State.STARTING, event.at, event.at + max(INSPECT_S, stall_s("plan", rules.stall_s)),
        generation=s.generation + 1, spawned=False, phase="plan", **changes,
    )  # fmt: skip
    return _inspect(s)


def _start_afresh(s: Snapshot, event: Event, rules: Rules) -> Result:
    """The operator acted: old failures and lowered plans no longer count."""
    s = replace(_forgiven(s), refusal=None)
    return _start(s, event, rules, pending=None, reason="")


def _forgiven(s: Snapshot) -> Snapshot:
    """Without the failures so far: the operator asked for another attempt."""
    return replace(s, failures=0, failed_plan="", recurrence=NEVER)


def _start_reconfigured(s: Snapshot, event: Reconfigured, rules: Rules) -> Result:
    """Tried at once, but failures count on: the plan may be the one that failed."""
    return _start(s, event, rules, pending=None if event.changed else s.pending, reason="")


def _back_off_reconfigured(s: Snapshot, event: Reconfigured, rules: Rules) -> Result:
    """What is the same cuts no back-off short."""
    return _start_reconfigured(s, event, rules) if event.changed else (s, ())


def _quiet(s: Snapshot, event: Stop, rules: Rules) -> Result:
    """Stop where no child is, or one that could not be ended, which still has to be said."""
    left = s.state is State.STOPPED or (s.finding and s.finding.phase == "ending")
    reason = (left and s.reason) or "stopped"
    s = _enter(s, State.STOPPED, event.at, None, quitting=event.quit, reason=reason, refusal=None)
    return s, ((Quit(),) if event.quit else ())


def _planned(s: Snapshot, event: Planned, rules: Rules) -> Result:
    plan = event.plan
    assert plan is not None
    if s.spawned:
        return _replanned(s, event, rules)
    if plan.identity != s.failed_plan:
        s = replace(s, failures=0, spared=0)
    s = replace(
        s, plan=plan, pending=None, spawned=True, spawns=s.spawns + 1, replanning=False,
        # Tried again as it was or lowered, it is still not what the file asks for.
        refusal=s.refusal if s.pending and s.pending.identity == plan.identity else None,
        phase="launch", deadline=event.at + stall_s("launch", rules.stall_s),
    )  # fmt: skip
    return s, (Spawn(s.generation, plan),)


def _replanned(s: Snapshot, event: Planned, rules: Rules) -> Result:
    """An inspection beside a living child: only a changed plan ends that child."""
    assert event.plan is not None
    if s.plan is not None and event.plan.identity == s.plan.identity:
        return replace(s, plan=event.plan, replanning=False, refusal=None), ()
    return _recycle(s, event, rules, "start", "the plan changed", pending=event.plan, refusal=None)


def _planned_in_hold(s: Snapshot, event: Planned, rules: Rules) -> Result:
    """What was missing is there again."""
    s = _enter(
        s, State.STARTING, event.at, None, generation=s.generation + 1, spawned=False, reason=""
    )
    return _planned(s, event, rules)


def _refused(s: Snapshot, event: Refused, rules: Rules) -> Result:
    """No child was started: wait for the world, or for the operator. A living child goes on."""
    if s.spawned and s.state in (State.STARTING, State.SERVING):
        return replace(s, replanning=False, refusal=event.finding), ()
    assert event.finding is not None
    state = State.HOLD if event.hold else State.FAILED
    deadline = event.at + rules.recheck_s if event.hold else None
    since = s.since if s.state is state else event.at
    s = _met(_enter(s, state, since, deadline, reason=event.finding.text), event.finding, event.at)
    return replace(s, spawned=False, remedy=None, refusal=None), ()


def _progressed(s: Snapshot, event: Progressed, rules: Rules) -> Result:
    phase = s.phase if event.heartbeat else event.phase or s.phase
    deadline = s.deadline if event.heartbeat else event.at + stall_s(phase, rules.stall_s)
    progress = s.progress if event.heartbeat else event.progress
    return replace(s, phase=phase, progress=progress, detail=event.detail, deadline=deadline), ()


def _proven(s: Snapshot, event: Proven, rules: Rules) -> Result:
    deadline = event.at + rules.stable_after_s
    return _enter(s, State.SERVING, event.at, deadline, reason="", replanning=s.replanning), ()


def _stable(s: Snapshot, event: Tick, rules: Rules) -> Result:
    """Only long serving clears the count: slow boots and fast crashes are treated alike.

    What comes back later all the same is known by its `recurrence`.
    """
    if s.deadline is None or event.at < s.deadline:
        return s, ()
    return replace(s, deadline=None, failures=0, failed_plan=""), ()


def _stalled(s: Snapshot, event: Tick, rules: Rules) -> Result:
    if s.deadline is None or event.at < s.deadline:
        return s, ()
    if not s.spawned:
        return _never_inspected(s, event, rules)
    doing = f" ({s.detail})" if s.detail else ""
    waited_s = stall_s(s.phase, rules.stall_s)
    text = f"no progress in phase {s.phase or 'start'}{doing} for {waited_s:.0f} s"
    finding = Finding("start-stall", text, s.phase)
    return _failed(s, Failed(event.at, event.chance, s.generation, finding), rules)


def _never_inspected(s: Snapshot, event: Tick, rules: Rules) -> Result:
    """No answer about the machine says nothing against the plan: wait on, a late one counts."""
    text = "looking at engine, model and machine takes too long; look for a hung disk or driver"
    finding = Finding("start-stall", text, s.phase)
    deadline = event.at + max(INSPECT_S, rules.recheck_s)
    s = _enter(s, State.HOLD, event.at, deadline, reason=text, looking=True)
    return _met(s, finding, event.at), ()


def _failed(s: Snapshot, event: Failed | Exited, rules: Rules) -> Result:
    """A failure of the running plan: judged, counted, and everything of the child ended."""
    finding = event.finding
    assert finding is not None
    if s.plan is None or not s.spawned:
        return s, ()  # of a child that never was
    identity = s.plan.identity
    known = identity == s.failed_plan
    failures, spared = (s.failures + 1, s.spared) if known else (1, 0)
    counted = failures - spared
    recurrence = s.recurrence.after(finding.kind, identity, event.at, in_a_row=known)
    remedy = rules.judge(s.plan, finding, recurrence.count)
    # What is waited for is no fault of the plan.
    spared += remedy.spared or remedy.verdict == "hold"
    s = replace(
        s, failures=failures, spared=spared, failed_plan=identity, remedy=remedy,
        recurrence=s.recurrence if remedy.spared else recurrence,
    )  # fmt: skip
    s = _met(s, finding, event.at)
    if s.replanning:
        # The operator has changed something meanwhile: what failed is the plan from before that.
        return _recycle(s, event, rules, "start", finding.text, pending=None)
    if remedy.verdict == "lower":
        return _recycle(s, event, rules, "backoff", finding.text, pending=remedy.plan)
    if remedy.verdict == "hold":
        return _recycle(s, event, rules, "hold", finding.text, pending=s.plan)
    if remedy.verdict != "fail" and not remedy.spared and counted >= rules.failures:
        text = f"given up: this plan failed {counted} times in a row"
        s = replace(s, remedy=replace(remedy, verdict="fail", text=text))
    if s.remedy is not None and s.remedy.verdict == "fail":
        return _recycle(s, event, rules, "fail", finding.text, pending=None)
    return _recycle(s, event, rules, "backoff", finding.text, pending=s.plan)


def _recycle(
    s: Snapshot, event: Event, rules: Rules,
    then: Literal["start", "backoff", "hold", "fail"], reason: str, **changes: Any,
) -> Result:  # fmt: skip
    grace_s = _grace(s, event, rules)
    deadline = event.at + grace_s + KILL_S
    # An inspection under way was made beside this child: it saw neither leftovers nor the port.
    changes["inspection"] = s.inspection + 1
    s = _enter(s, State.RECYCLING, event.at, deadline, then=then, reason=reason, **changes)
    return s, (End(s.generation, grace_s),)


def _grace(s: Snapshot, event: Event, rules: Rules) -> float:
    """vLLM swallows TERM while it starts, and then has no request to finish either.

    Nor does one that hangs finish any, or has died below its HTTP server.
    """
    if s.state is not State.SERVING:
        return STARTING_GRACE_S
    stuck = isinstance(event, Failed) and event.finding and event.finding.failure not in LIVES_ON
    return 0.0 if stuck else rules.drain_s + DRAIN_MARGIN_S


def _restart(s: Snapshot, event: Restart, rules: Rules) -> Result:
    return _recycle(_forgiven(s), event, rules, "start", event.reason, pending=None)


def _replan(s: Snapshot, event: Reconfigured, rules: Rules) -> Result:
    return _inspect(replace(s, replanning=True, pending=None))


def _start_after(s: Snapshot, event: Event, rules: Rules) -> Result:
    """Asked for while a child is being ended: start as soon as it is gone."""
    return replace(_forgiven(s), then="start", pending=None), ()


def _start_after_reconfigured(s: Snapshot, event: Reconfigured, rules: Rules) -> Result:
    return (replace(s, then="start", pending=None), ()) if event.changed else (s, ())


def _start_after_stop(s: Snapshot, event: Start | Restart, rules: Rules) -> Result:
    if s.quitting:
        return s, ()
    s = _enter(_forgiven(s), State.RECYCLING, event.at, s.deadline, then="start", pending=None)
    return replace(s, reason="start asked for"), ()


def _gone(s: Snapshot, event: Gone, rules: Rules) -> Result:
    s = replace(s, spawned=False)
    if s.then == "start":
        return _start(s, event, rules)
    if s.then == "backoff":
        wait_s = delay(max(s.failures, 1), event.chance)
        return _enter(s, State.BACKOFF, event.at, event.at + wait_s), ()
    if s.then == "hold":
        return _enter(s, State.HOLD, event.at, event.at + _hold_s(s, rules)), ()
    return _enter(s, State.FAILED, event.at, None), ()


def _unkillable(s: Snapshot, event: Unkillable, rules: Rules) -> Result:
    finding = event.finding
    assert finding is not None
    s = _met(replace(s, spawned=False, reason=finding.text), finding, event.at)
    return _enter(s, State.HOLD, event.at, event.at + _hold_s(s, rules)), ()


def _hold_s(s: Snapshot, rules: Rules) -> float:
    """Longer with each failure: an inspection may see nothing of what only an engine meets.

    A card with bad memory answers NVML well, and each attempt costs its model a load.
    """
    longest = max(HOLD_S, rules.recheck_s)
    doublings = min(max(s.failures, 1) - 1, 16)
    return float(min(rules.recheck_s * 2.0**doublings, longest))


def _never_gone(s: Snapshot, event: Tick, rules: Rules) -> Result:
    """The last resort where ending a child gave no answer at all."""
    if s.deadline is None or event.at < s.deadline:
        return s, ()
    text = "cannot end the engine: no answer within the deadline; look for its processes"
    return _unkillable(
        s, Unkillable(event.at, generation=s.generation, finding=Finding("unknown", text)), rules
    )


def _due(s: Snapshot, event: Tick, rules: Rules) -> Result:
    """The back-off is over."""
    return (s, ()) if s.deadline is None or event.at < s.deadline else _start(s, event, rules)


def _recheck(s: Snapshot, event: Tick, rules: Rules) -> Result:
    """Ask again; the next time only after an answer, or when none comes for long."""
    if s.deadline is None or event.at < s.deadline:
        return s, ()
    deadline = event.at + max(INSPECT_S, rules.recheck_s)
    return _inspect(replace(s, deadline=deadline, looking=True))


def _stop(s: Snapshot, event: Stop, rules: Rules) -> Result:
    grace_s = _grace(s, event, rules)
    s = _enter(
        s, State.STOPPING, event.at, event.at + grace_s + KILL_S,
        inspection=s.inspection + 1, quitting=event.quit, reason="stop asked for", refusal=None,
    )  # fmt: skip
    return s, (End(s.generation, grace_s),)


def _stop_now(s: Snapshot, event: Stop, rules: Rules) -> Result:
    """Asked again: no more grace."""
    s = replace(s, quitting=s.quitting or event.quit, deadline=event.at + KILL_S)
    return s, (End(s.generation, 0.0),)


def _stopped(s: Snapshot, event: Gone | Unkillable, rules: Rules) -> Result:
    left = event.finding.text if isinstance(event, Unkillable) and event.finding else "stopped"
    s = _enter(s, State.STOPPED, event.at, None, spawned=False, reason=left)
    return s, ((Quit(),) if s.quitting else ())


def _stop_overdue(s: Snapshot, event: Tick, rules: Rules) -> Result:
    if s.deadline is None or event.at < s.deadline:
        return s, ()
    text = "the engine did not end within its deadline"
    return _stopped(
        s, Unkillable(event.at, generation=s.generation, finding=Finding("unknown", text)), rules
    )


_S = State


def _row(function: Callable[[Snapshot, Any, Rules], Result], *targets: State) -> Row:
    return function, frozenset(targets)


_RECYCLED = (_S.STARTING, _S.BACKOFF, _S.HOLD, _S.FAILED)

EDGES: Mapping[tuple[State, type[Event]], Row] = {
    (_S.STOPPED, Start): _row(_start_afresh, _S.STARTING),
    (_S.STOPPED, Restart): _row(_start_afresh, _S.STARTING),
    (_S.STOPPED, Stop): _row(_quiet, _S.STOPPED),
    (_S.STARTING, Planned): _row(_planned, _S.STARTING, _S.RECYCLING),
    (_S.STARTING, Refused): _row(_refused, _S.STARTING, _S.HOLD, _S.FAILED),
    (_S.STARTING, Progressed): _row(_progressed, _S.STARTING),
    (_S.STARTING, Proven): _row(_proven, _S.SERVING),
    (_S.STARTING, Failed): _row(_failed, _S.RECYCLING),
    (_S.STARTING, Exited): _row(_failed, _S.RECYCLING),
    (_S.STARTING, Tick): _row(_stalled, _S.STARTING, _S.RECYCLING, _S.HOLD),
    (_S.STARTING, Restart): _row(_restart, _S.RECYCLING),
    (_S.STARTING, Reconfigured): _row(_replan, _S.STARTING),
    (_S.STARTING, Stop): _row(_stop, _S.STOPPING),
    (_S.SERVING, Planned): _row(_replanned, _S.SERVING, _S.RECYCLING),
    (_S.SERVING, Refused): _row(_refused, _S.SERVING),
    (_S.SERVING, Failed): _row(_failed, _S.RECYCLING),
    (_S.SERVING, Exited): _row(_failed, _S.RECYCLING),
    (_S.SERVING, Tick): _row(_stable, _S.SERVING),
    (_S.SERVING, Restart): _row(_restart, _S.RECYCLING),
    (_S.SERVING, Reconfigured): _row(_replan, _S.SERVING),
    (_S.SERVING, Stop): _row(_stop, _S.STOPPING),
    (_S.RECYCLING, Gone): _row(_gone, *_RECYCLED),
    (_S.RECYCLING, Unkillable): _row(_unkillable, _S.HOLD),
    (_S.RECYCLING, Tick): _row(_never_gone, _S.RECYCLING, _S.HOLD),
    (_S.RECYCLING, Start): _row(_start_after, _S.RECYCLING),
    (_S.RECYCLING, Restart): _row(_start_after, _S.RECYCLING),
    (_S.RECYCLING, Reconfigured): _row(_start_after_reconfigured, _S.RECYCLING),
    (_S.RECYCLING, Stop): _row(_stop, _S.STOPPING),
    (_S.BACKOFF, Tick): _row(_due, _S.BACKOFF, _S.STARTING),
    (_S.BACKOFF, Start): _row(_start_afresh, _S.STARTING),
    (_S.BACKOFF, Restart): _row(_start_afresh, _S.STARTING),
    (_S.BACKOFF, Reconfigured): _row(_back_off_reconfigured, _S.BACKOFF, _S.STARTING),
    (_S.BACKOFF, Stop): _row(_quiet, _S.STOPPED),
    (_S.HOLD, Tick): _row(_recheck, _S.HOLD),
    (_S.HOLD, Planned): _row(_planned_in_hold, _S.STARTING),
    (_S.HOLD, Refused): _row(_refused, _S.HOLD, _S.FAILED),
    (_S.HOLD, Start): _row(_start_afresh, _S.STARTING),
    (_S.HOLD, Restart): _row(_start_afresh, _S.STARTING),
    (_S.HOLD, Reconfigured): _row(_start_reconfigured, _S.STARTING),
    (_S.HOLD, Stop): _row(_quiet, _S.STOPPED),
    (_S.FAILED, Start): _row(_start_afresh, _S.STARTING),
    (_S.FAILED, Restart): _row(_start_afresh, _S.STARTING),
    (_S.FAILED, Reconfigured): _row(_start_reconfigured, _S.STARTING),
    (_S.FAILED, Stop): _row(_quiet, _S.STOPPED),
    (_S.STOPPING, Gone): _row(_stopped, _S.STOPPED),
    (_S.STOPPING, Unkillable): _row(_stopped, _S.STOPPED),
    (_S.STOPPING, Tick): _row(_stop_overdue, _S.STOPPING, _S.STOPPED),
    (_S.STOPPING, Start): _row(_start_after_stop, _S.RECYCLING, _S.STOPPING),
    (_S.STOPPING, Restart): _row(_start_after_stop, _S.RECYCLING, _S.STOPPING),
    (_S.STOPPING, Stop): _row(_stop_now, _S.STOPPING),
}
