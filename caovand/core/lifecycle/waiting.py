"""No child lives: wait for an outside cause to pass, or stop."""

from __future__ import annotations

from dataclasses import replace

from caovand.core.lifecycle.events import Planned, Quit, Reconfigured, Stop, TimePassed
from caovand.core.lifecycle.starting import INSPECT_S, inspect, spawn, start_reconfigured
from caovand.core.lifecycle.state import LifecycleRules, Snapshot, State, TransitionResult


def recheck(s: Snapshot, event: TimePassed, rules: LifecycleRules) -> TransitionResult:
    """Inspect again; then wait for the answer, or until it is long overdue."""
    return inspect(replace(s, deadline=event.at + max(INSPECT_S, rules.watch.recheck_s)))


def start_from_hold(s: Snapshot, event: Planned, rules: LifecycleRules) -> TransitionResult:
    """Start now that the missing condition is met again."""
    s = s.enter(State.STARTING, event.at, None, generation=s.generation + 1, reason="")
    return spawn(s, event, rules)


def start_if_changed(s: Snapshot, event: Reconfigured, rules: LifecycleRules) -> TransitionResult:
    """Only a changed configuration cuts a back-off short."""
    return start_reconfigured(s, event, rules) if event.changed else (s, ())


def stop_without_child(s: Snapshot, event: Stop, rules: LifecycleRules) -> TransitionResult:
    """Stop without a child. If an earlier child could not be killed, keep that reason."""
    left = s.state is State.STOPPED or (s.finding and s.finding.phase == "ending")
    reason = (left and s.reason) or "stopped"
    s = s.without_changes().enter(State.STOPPED, event.at, None, reason=reason)
    return s, ((Quit(),) if event.quit else ())
