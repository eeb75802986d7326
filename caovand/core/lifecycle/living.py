"""A child lives, still starting or serving: it progresses, fails, or a new plan replaces it."""

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
    Refused,
    Restart,
    Start,
    Tick,
)
from caovand.core.lifecycle.starting import inspect, spawn, wait_for_inspection, wait_refused
from caovand.core.lifecycle.state import Ending, LifecycleRules, Result, Snapshot, State
from caovand.core.plan import Plan

PLAN_CHANGED = "the plan changed"
"""The reason of a restart that the operator's own changes of the configuration lead to."""
WAY_BACK = "back to the plan that served before the change"


def progressed(s: Snapshot, event: Progressed, rules: LifecycleRules) -> Result:
    """Show how far the start is; only a heartbeat leaves the deadline alone."""
    if event.heartbeat:
        return replace(s, detail=event.detail), ()
    phase = event.phase or s.phase
    deadline = event.at + stall_s(phase, rules.watch.stall_s)
    return replace(
        s, phase=phase, progress=event.progress, detail=event.detail, deadline=deadline
    ), ()


def proven(s: Snapshot, event: Proven, rules: LifecycleRules) -> Result:
    """The engine answers, so it serves."""
    deadline = event.at + rules.watch.stable_after_s
    s = s.enter(State.SERVING, event.at, deadline, reason="", inspecting=s.inspecting)
    return replace(s, fallback=None), ()


def stable(s: Snapshot, event: Tick, rules: LifecycleRules) -> Result:
    """Only long serving clears the count: slow boots and fast crashes are treated alike.

    What comes back later all the same is known by its `recurrence`.
    """
    return replace(s, deadline=None, failures=0, failed_plan=""), ()


def overdue(s: Snapshot, event: Tick, rules: LifecycleRules) -> Result:
    """A start that no longer progresses has failed, unless there is no child to blame yet."""
    if not s.spawned:
        return wait_for_inspection(s, event, rules)
    doing = f" ({s.detail})" if s.detail else ""
    waited_s = stall_s(s.phase, rules.watch.stall_s)
    text = f"no progress in phase {s.phase or 'start'}{doing} for {waited_s:.0f} s"
    finding = Finding("start-stall", text, s.phase)
    return failed(s, Failed(at=event.at, generation=s.generation, finding=finding), rules)


def failed(s: Snapshot, event: Failed | Exited, rules: LifecycleRules) -> Result:
    """Judge and count a failure of the running plan, then end everything of the child."""
    plan, finding = s.plan, event.finding
    if plan is None or not s.spawned:
        return s, ()  # of a child that never was
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
        remedy = Decision("lower", s.fallback, text=WAY_BACK)
        refusal = replace(finding, text=f"the changed plan failed: {finding.text}")
        s = replace(s, refusal=refusal, abandoned=plan.identity)
    s = replace(
        s, failures=failures, failed_plan=plan.identity, remedy=remedy,
        # What is waited for is no fault of the plan.
        excused=excused + (remedy.excused or remedy.verdict == "hold"),
        recurrence=s.recurrence if remedy.excused else recurrence,
    )  # fmt: skip
    return recycle(s.met(finding, event.at), event, rules, _ending(s, remedy), finding.text)


def _is_against(fallback: Plan, finding: Finding, remedy: Decision) -> bool:
    """Whether a failure is evidence against the plan that replaced `fallback`, with no free remedy.

    A plan that the judge goes back to by itself was on trial: nobody is refused anything.
    """
    if remedy.verdict == "lower":
        lower = remedy.plan
        free = lower is None or (lower.taken and not lower.taken[-1].degrades)
        return lower is not None and not free and lower.identity != fallback.identity
    waits = remedy.excused or remedy.verdict == "hold"
    return not waits and (remedy.verdict == "fail" or not finding.maybe_killed)


def _ending(s: Snapshot, remedy: Decision) -> Ending:
    """What follows a failure that calls for `remedy`."""
    if s.replanning:
        # The operator has changed something meanwhile: what failed is the plan from before that.
        return Ending("start")
    if remedy.verdict == "lower":
        return Ending("backoff", remedy.plan)
    if remedy.verdict == "hold":
        return Ending("hold", s.plan)
    return Ending("fail") if remedy.verdict == "fail" else Ending("backoff", s.plan)


def restart(s: Snapshot, event: Restart, rules: LifecycleRules) -> Result:
    """A new child is wanted: failures of this one no longer count."""
    fallback = None if event.by == "head" else _last_served(s)
    s = replace(s.forgiven(), fallback=fallback, abandoned="")
    return recycle(s, event, rules, Ending("start"), event.reason)


def _last_served(s: Snapshot) -> Plan | None:
    """The plan that a change may fall back to."""
    return s.plan if s.state is State.SERVING else s.fallback


def retry_refused(s: Snapshot, event: Start, rules: LifecycleRules) -> Result:
    """Retry the refused change while the child keeps running."""
    return inspect(replace(s, next_plan=None, abandoned="")) if s.refusal else (s, ())


def replan(s: Snapshot, event: Reconfigured, rules: LifecycleRules) -> Result:
    """Make a new plan while the child goes on."""
    return inspect(replace(s, next_plan=None))


def planned(s: Snapshot, event: Planned, rules: LifecycleRules) -> Result:
    """Spawn what was planned; a child that lives is ended only for a changed plan."""
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


def refused(s: Snapshot, event: Refused, rules: LifecycleRules) -> Result:
    """A living child goes on with its plan; only the refusal of the new one is shown."""
    if not s.spawned:
        return wait_refused(s, event, rules)
    return replace(s, inspecting=False, refusal=event.finding), ()
