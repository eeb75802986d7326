"""Stop a child: the time limits, what follows, and what happens if it does not exit."""

from __future__ import annotations

from dataclasses import replace

from caovand.core.healing.failure import Failure, Finding
from caovand.core.lifecycle.backoff import delay
from caovand.core.lifecycle.events import (
    EndChild,
    Exited,
    Failed,
    Gone,
    LifecycleEvent,
    Quit,
    Reconfigured,
    Restart,
    Start,
    Stop,
    TimePassed,
    Unkillable,
)
from caovand.core.lifecycle.starting import begin
from caovand.core.lifecycle.state import Ending, LifecycleRules, Snapshot, State, TransitionResult

# Time limits for ending a child: TERM while it starts, then KILL and the proof; after that, the
# cards' memory has a minute to be freed.
STARTING_GRACE_S = 2.0
DRAIN_MARGIN_S = 2.0
KILL_S = 100.0
SURVIVABLE_FAILURES: frozenset[Failure] = frozenset({
    "draft-collapse", "host-oom", "answers-changed", "answers-degenerate",
})  # fmt: skip
"""Problems of an engine that still finishes requests: it is slow, it lost a process to the kernel's
OOM killer, or its answers are wrong."""
HOLD_S = 300.0
"""A plan that keeps failing for an outside reason is retried at least this often."""


def recycle(
    s: Snapshot, event: LifecycleEvent, rules: LifecycleRules, ending: Ending, reason: str
) -> TransitionResult:
    """Stop the child; `ending` says what follows."""
    gentle = _ends_gently(s, event)
    grace_s = STARTING_GRACE_S if s.state is not State.SERVING else 0.0
    grace_s = rules.watch.shutdown_timeout_s + DRAIN_MARGIN_S if gentle else grace_s
    drain_s = rules.gateway_drain_s if gentle and not isinstance(event, Exited) else 0.0
    deadline = event.at + drain_s + grace_s + KILL_S
    if s.ending is not None and s.deadline is not None:
        deadline = max(deadline, s.deadline)  # answers in progress keep their time to finish
    s = s.enter(
        ending.state, event.at, deadline, ending=ending, reason=reason,
        # A running inspection did not see this child's orphans or port: drop its answer.
        inspection=s.inspection + 1, next_plan=None,
    )  # fmt: skip
    return s, (EndChild(s.generation, grace_s, drain_s),)


def _ends_gently(s: Snapshot, event: LifecycleEvent) -> bool:
    """Whether the child can finish its requests.

    While it starts, vLLM ignores TERM and has no requests to finish. An engine that hangs, or has
    died below its HTTP server, cannot finish any.
    """
    stuck = isinstance(event, Failed) and event.finding.failure not in SURVIVABLE_FAILURES
    return s.state is State.SERVING and not stuck


def _ending_of(s: Snapshot) -> Ending:
    """The ending in progress: RECYCLING and STOPPING always have one."""
    assert s.ending is not None
    return s.ending


# -- RECYCLING ------------------------------------------------------------------------------


def gone(s: Snapshot, event: Gone, rules: LifecycleRules) -> TransitionResult:
    """Do what the child was stopped for, now that it is gone."""
    after_stop = _ending_of(s).after_stop
    s = replace(s, next_plan=_ending_of(s).next_plan)
    if after_stop == "start":
        return begin(s, event, rules)
    if after_stop == "backoff":
        wait_s = delay(max(s.failures, 1), event.chance)
        return s.enter(State.BACKOFF, event.at, event.at + wait_s), ()
    if after_stop == "hold":
        return s.enter(State.HOLD, event.at, event.at + _hold_s(s, rules)), ()
    return s.enter(State.FAILED, event.at, None), ()


def unkillable(s: Snapshot, event: Unkillable, rules: LifecycleRules) -> TransitionResult:
    """No other engine can run while processes of this one remain: wait until they are gone."""
    return _hold_unended(s, event.at, event.finding, rules)


def recycling_overdue(s: Snapshot, event: TimePassed, rules: LifecycleRules) -> TransitionResult:
    """The last resort if ending a child produced no result at all."""
    text = "cannot stop the engine: no answer within the deadline; check for its processes"
    return _hold_unended(s, event.at, Finding("unknown", text), rules)


def _hold_unended(
    s: Snapshot, at: float, finding: Finding, rules: LifecycleRules
) -> TransitionResult:
    plan = _ending_of(s).next_plan
    s = s.enter(State.HOLD, at, at + _hold_s(s, rules), next_plan=plan, reason=finding.text)
    return s.with_finding(finding, at), ()


def _hold_s(s: Snapshot, rules: LifecycleRules) -> float:
    """Longer after each failure: an inspection can miss what only a running engine reveals.

    A card with bad memory answers NVML normally, and each attempt costs a model load.
    """
    longest = max(HOLD_S, rules.watch.recheck_s)
    doublings = min(max(s.failures, 1) - 1, 16)
    return float(min(rules.watch.recheck_s * 2.0**doublings, longest))


def start_when_gone(s: Snapshot, event: Start | Restart, rules: LifecycleRules) -> TransitionResult:
    """Start as soon as the child is gone, whatever it was stopped for."""
    return replace(s.without_failures(), ending=Ending("start")), ()


def start_when_gone_reconfigured(
    s: Snapshot, event: Reconfigured, rules: LifecycleRules
) -> TransitionResult:
    """Try a changed configuration next; an unchanged one does not undo the ladder's changes."""
    return (replace(s, ending=Ending("start")) if event.changed else s), ()


# -- STOPPING -------------------------------------------------------------------------------


def stop(s: Snapshot, event: Stop, rules: LifecycleRules) -> TransitionResult:
    """End the child without starting another."""
    ending = Ending("quit" if event.quit else "stopped")
    return recycle(s.without_changes(), event, rules, ending, "stop requested")


def stop_now(s: Snapshot, event: Stop, rules: LifecycleRules) -> TransitionResult:
    """A repeated request: skip the grace period."""
    ending = Ending("quit") if event.quit else s.ending
    return replace(s, ending=ending, deadline=event.at + KILL_S), (EndChild(s.generation, 0.0),)


def start_after_stop(
    s: Snapshot, event: Start | Restart, rules: LifecycleRules
) -> TransitionResult:
    """Start again once the child is gone, unless the daemon is quitting."""
    if s.quitting:
        return s, ()
    s = s.without_failures()
    ending = Ending("start")
    reason = "start requested"
    return s.enter(ending.state, event.at, s.deadline, ending=ending, reason=reason), ()


def stopped(s: Snapshot, event: Gone, rules: LifecycleRules) -> TransitionResult:
    """The child is gone."""
    return _stop_with(s, event.at, "stopped")


def stopped_unkillable(s: Snapshot, event: Unkillable, rules: LifecycleRules) -> TransitionResult:
    """STOPPED, with the processes that could not be killed as the reason."""
    return _stop_with(s, event.at, event.finding.text)


def stopping_overdue(s: Snapshot, event: TimePassed, rules: LifecycleRules) -> TransitionResult:
    """Stop despite remaining processes; the next daemon kills them."""
    return _stop_with(
        s, event.at, "the engine did not stop within its deadline; check for its processes"
    )


def _stop_with(s: Snapshot, at: float, reason: str) -> TransitionResult:
    return s.enter(State.STOPPED, at, None, reason=reason), ((Quit(),) if s.quitting else ())
