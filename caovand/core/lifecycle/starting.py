"""An attempt until its child exists: inspect, plan, spawn, or wait if that is impossible."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from caovand.core.healing.failure import Finding
from caovand.core.health.stall import stall_s
from caovand.core.lifecycle.events import (
    Inspect,
    LifecycleEvent,
    Planned,
    Reconfigured,
    Restart,
    Spawn,
    Start,
    StartRefused,
    TimePassed,
)
from caovand.core.lifecycle.state import LifecycleRules, Snapshot, State, TransitionResult

INSPECT_S = 300.0
"""Time limit of an inspection: a cold probe imports all of vLLM."""


def inspect(s: Snapshot) -> TransitionResult:
    """Begin another inspection; the previous one's answer no longer counts."""
    s = replace(s, inspection=s.inspection + 1, inspecting=True)
    return s, (Inspect(s.inspection, s.next_plan),)


def begin(
    s: Snapshot, event: LifecycleEvent, rules: LifecycleRules, **changes: Any
) -> TransitionResult:
    """Begin an attempt: a new generation, starting with an inspection."""
    longest_s = max(INSPECT_S, stall_s("plan", rules.watch.stall_s))
    s = s.enter(
        State.STARTING, event.at, event.at + longest_s,
        generation=s.generation + 1, phase="plan", **changes,
    )  # fmt: skip
    return inspect(s)


def start_afresh(s: Snapshot, event: Start | Restart, rules: LifecycleRules) -> TransitionResult:
    """The operator acted: forget old failures and degraded plans."""
    return begin(s.without_failures(), event, rules, next_plan=None, refusal=None, reason="")


def start_reconfigured(s: Snapshot, event: Reconfigured, rules: LifecycleRules) -> TransitionResult:
    """Try at once, but keep counting failures: this plan may be the one that failed."""
    return begin(s, event, rules, next_plan=None if event.changed else s.next_plan, reason="")


def start_after_backoff(s: Snapshot, event: TimePassed, rules: LifecycleRules) -> TransitionResult:
    """Try again once the back-off is over."""
    return begin(s, event, rules)


def spawn(s: Snapshot, event: Planned, rules: LifecycleRules) -> TransitionResult:
    """Start the child of this attempt; a plan that has not failed resets the count."""
    plan = event.plan
    if plan.identity != s.failed_plan:
        s = replace(s, failures=0, excused=0)
    if s.fallback is not None and plan.identity == s.fallback.identity:
        s = replace(s, fallback=None)
    if s.next_plan is None or s.next_plan.identity != plan.identity:
        # Retried unchanged or degraded, the plan still differs from the configuration file.
        s = replace(s, refusal=None, abandoned="")
    s = replace(
        s, plan=plan, next_plan=None, inspecting=False, spawned=True, spawns=s.spawns + 1,
        phase="launch", deadline=event.at + stall_s("launch", rules.watch.stall_s),
    )  # fmt: skip
    return s, (Spawn(s.generation, plan),)


def wait_refused(s: Snapshot, event: StartRefused, rules: LifecycleRules) -> TransitionResult:
    """No child can be started: wait for the outside cause or for the operator.

    If the operator's change has no plan, the plan that served before serves again.
    """
    if not event.hold and s.fallback is not None and not s.is_reverting:
        s = replace(s.with_finding(event.finding, event.at), next_plan=s.fallback, remedy=None)
        refused = {"refusal": event.finding, "abandoned": "", "reason": event.finding.text}
        return begin(s, event, rules, **refused)
    state = State.HOLD if event.hold else State.FAILED
    deadline = event.at + rules.watch.recheck_s if event.hold else None
    since = s.since if s.state is state else event.at
    if s.next_plan is None:
        s = replace(s, refusal=None, abandoned="")
    s = s.enter(
        state, since, deadline, reason=event.finding.text, remedy=None,
        fallback=s.fallback if event.hold else None,
    )  # fmt: skip
    return s.with_finding(event.finding, event.at), ()


def wait_for_inspection(s: Snapshot, event: TimePassed, rules: LifecycleRules) -> TransitionResult:
    """Keep waiting: a missing answer is no evidence against the plan, and a late one still
    counts."""
    doing = f" ({s.detail})" if s.detail else "; check for a hung disk or driver"
    text = (
        "cannot plan: inspecting the engine, the model and the host has not finished after "
        f"{event.at - s.since:.0f} s{doing}"
    )
    finding = Finding("start-stall", text, s.phase)
    deadline = event.at + max(INSPECT_S, rules.watch.recheck_s)
    s = s.enter(State.HOLD, event.at, deadline, reason=text, inspecting=True)
    return s.with_finding(finding, event.at), ()
