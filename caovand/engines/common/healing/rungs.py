"""Rungs that engines share: each halves a setting, or drops one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from caovand.core.healing.failure import Finding
from caovand.core.healing.rung import RungStep
from caovand.core.plan import Plan
from caovand.engines.common.options import count

Step = Callable[[Plan, Finding], RungStep | None]
"""The step function of a rung."""
MIN_CONTEXT = 2048
"""The shortest context that a conversation can use."""
GRANULE = 256
BY_PERSON: Mapping[str, tuple[str, ...]] = {
    "signal.instruction": (),
    "tgi.instruction": (),
    "rocm.kernel": (),
    "rocm.hipblaslt": (),
    "driver.old": (),
    "driver.ptx": (),
    "driver.behind": (),
    "container.requirement": (),
    "jit.link": (),
    "gpu.old": (),
}
"""The rows of `Healing.precise` for a build, driver, container, library or card that only a person
can replace."""


def halve(plan: Plan, name: str, least: int, label: str) -> RungStep | None:
    """Half of a count, down to `least`; None if it is not set or already there."""
    now = count(plan.value(name))
    if now is None or now <= least:
        return None
    goal = max(now // 2, least)
    return RungStep({name: goal}, value=str(goal), change=f"{label} {now} -> {goal}")


def context_step(name: str) -> Step:
    """Make the step to half of the context in whole granules, down to MIN_CONTEXT."""

    def halve_context(plan: Plan, finding: Finding) -> RungStep | None:
        now = count(plan.value(name)) or 0
        goal = now // 2 // GRANULE * GRANULE
        if goal < MIN_CONTEXT:
            return None
        return RungStep({name: goal}, value=str(goal), change=f"context {now} -> {goal}")

    return halve_context


def drafting_step(name: str) -> Step:
    """Return the step that drops the setting that drafts; without such a setting it does
    nothing.
    """

    def stop_drafting(plan: Plan, finding: Finding) -> RungStep | None:
        if not plan.mtp:
            return None
        return RungStep({name: None}, value="off", change=f"drafting {plan.mtp} -> off")

    return stop_drafting
