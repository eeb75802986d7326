"""While a child starts or serves: it progresses, fails, or is replaced because of a new plan."""

from __future__ import annotations

from dataclasses import replace

from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import Decision
from caovand.core.health.stall import stall_s
from caovand.core.lifecycle.ending import recycle
from caovand.core.lifecycle.events import (
    Exited,
    Failed,
    Planned,
    Progressed,
    Proven,
    Reconfigured,
    Restart,
    Start,
    StartRefused,
    TimePassed,
)
from caovand.core.lifecycle.starting import inspect, spawn, wait_for_inspection, wait_refused
from caovand.core.lifecycle.state import Ending, LifecycleRules, Snapshot, State, TransitionResult
from caovand.core.plan import Plan

PLAN_CHANGED = "the plan changed"
"""The reason for a restart caused by the operator's own configuration changes."""
FALLBACK_TEXT = "back to the plan that served before the change"


def progressed(s: Snapshot, event: Progressed, rules: LifecycleRules) -> TransitionResult:
    """Show the start's progress; heartbeats alone do not extend the deadline."""
    if event.heartbeat:
        return replace(s, detail=event.detail), ()
    phase = event.phase or s.phase
    deadline = event.at + stall_s(phase, rules.watch.stall_s)
    return replace(
        s, phase=phase, progress=event.progress, detail=event.detail, deadline=deadline
    ), ()


def proven(s: Snapshot, event: Proven, rules: LifecycleRules) -> TransitionResult:
    """The engine answers, so it serves."""
    deadline = event.at + rules.watch.stable_after_s
    s = s.enter(State.SERVING, event.at, deadline, reason="", inspecting=s.inspecting)
    return replace(s, fallback=None), ()


def stable(s: Snapshot, event: TimePassed, rules: LifecycleRules) -> TransitionResult:
    """Clear the failure count after serving stably, so slow boots and fast crashes are treated
    alike.

    `recurrence` still recognises failures that come back later.
    """
    return replace(s, deadline=None, failures=0, failed_plan=""), ()


def overdue(s: Snapshot, event: TimePassed, rules: LifecycleRules) -> TransitionResult:
    """A start without progress has failed, unless it has no child yet."""
    if not s.spawned:
        return wait_for_inspection(s, event, rules)
    doing = f" ({s.detail})" if s.detail else ""
    waited_s = stall_s(s.phase, rules.watch.stall_s)
    text = f"no progress in phase {s.phase or 'start'}{doing} for {waited_s:.0f} s"
    finding = Finding("start-stall", text, s.phase)
    return failed(s, Failed(at=event.at, generation=s.generation, finding=finding), rules)


def failed(s: Snapshot, event: Failed | Exited, rules: LifecycleRules) -> TransitionResult:
    """Judge and count a failure of the running plan, then stop the child."""
    plan, finding = s.plan, event.finding
    if plan is None or not s.spawned:
        return s, ()  # the child does not exist
    known = plan.identity == s.failed_plan
    failures, excused = (s.failures + 1, s.excused) if known else (1, 0)
    counted = failures - excused
    recurrence = s.recurrence.after(finding.kind, plan.identity, event.at, in_a_row=known)
    remedy = rules.judge(plan, finding, recurrence.count)
    hopeless = remedy.verdict == "again" and not remedy.excused and counted >= rules.watch.failures
    if hopeless and not s.replanning:
        text = f"gave up: this plan failed {counted} times in a row"
        remedy = replace(remedy, verdict="fail", text=text)
    if s.fallback is not None and not s.replanning and _is_against(s.fallback, finding, remedy):
        remedy = Decision("degrade", s.fallback, text=FALLBACK_TEXT)
        refusal = replace(finding, text=f"the changed plan failed: {finding.text}")
        s = replace(s, refusal=refusal, abandoned=plan.identity)
    s = replace(
        s, failures=failures, failed_plan=plan.identity, remedy=remedy,
        # A hold has an outside cause: the plan is not at fault.
        excused=excused + (remedy.excused or remedy.verdict == "hold"),
        recurrence=s.recurrence if remedy.excused else recurrence,
    )  # fmt: skip
    return recycle(
        s.with_finding(finding, event.at), event, rules, _ending(s, remedy), finding.text
    )


def _is_against(fallback: Plan, finding: Finding, remedy: Decision) -> bool:
    """Whether a failure is evidence against the plan that replaced `fallback`, without a remedy
    that costs nothing.

    A plan that the judge reverts was on trial, so it is not refused.
    """
    if remedy.verdict == "degrade":
        lower = remedy.plan
        free = lower is None or (lower.taken and not lower.taken[-1].degrades)
        return lower is not None and not free and lower.identity != fallback.identity
    waits = remedy.excused or remedy.verdict == "hold"
    return not waits and (remedy.verdict == "fail" or not finding.maybe_killed)


def _ending(s: Snapshot, remedy: Decision) -> Ending:
    """The ending after a failure that calls for `remedy`."""
    if s.replanning:
        # The operator has changed something since: the failed plan predates the change.
        return Ending("start")
    if remedy.verdict == "degrade":
        return Ending("backoff", remedy.plan)
    if remedy.verdict == "hold":
        return Ending("hold", s.plan)
    return Ending("fail") if remedy.verdict == "fail" else Ending("backoff", s.plan)


def restart(s: Snapshot, event: Restart, rules: LifecycleRules) -> TransitionResult:
    """A new child is requested: failures of this one no longer count."""
    fallback = None if event.by == "head" else _last_served(s)
    s = replace(s.without_failures(), fallback=fallback, abandoned="")
    return recycle(s, event, rules, Ending("start"), event.reason)


def _last_served(s: Snapshot) -> Plan | None:
    """The plan to which a failed change can revert."""
    return s.plan if s.state is State.SERVING else s.fallback


def retry_refused(s: Snapshot, event: Start, rules: LifecycleRules) -> TransitionResult:
    """Retry the refused change while the child keeps running."""
    return inspect(replace(s, next_plan=None, abandoned="")) if s.refusal else (s, ())


def replan(s: Snapshot, event: Reconfigured, rules: LifecycleRules) -> TransitionResult:
    """Make a new plan while the child keeps running."""
    return inspect(replace(s, next_plan=None))


def planned(s: Snapshot, event: Planned, rules: LifecycleRules) -> TransitionResult:
    """Spawn the planned child; a live child is stopped only if its plan changed."""
    if not s.spawned:
        return spawn(s, event, rules)
    s = replace(s, inspecting=False)
    if event.plan.identity == s.abandoned:
        return s, ()
    s = replace(s, refusal=None, abandoned="")
    if s.plan is not None and event.plan.identity == s.plan.identity:
        return replace(s, plan=event.plan), ()
    s = replace(s, fallback=_last_served(s))
    return recycle(s, event, rules, Ending("start", event.plan), PLAN_CHANGED)


def refused(s: Snapshot, event: StartRefused, rules: LifecycleRules) -> TransitionResult:
    """A live child keeps its plan; only the refusal of the new one is shown."""
    if not s.spawned:
        return wait_refused(s, event, rules)
    return replace(s, inspecting=False, refusal=event.finding), ()
