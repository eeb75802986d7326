"""Rungs that engines share: each halves a setting, or drops one."""

from __future__ import annotations

from collections.abc import Mapping

from caovand.core.healing.rung import RungStep
from caovand.core.plan import Plan
from caovand.engines.common.options import count

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
}
"""The rows of `Healing.precise` for a build, driver or container that only a person can replace."""


def halve(plan: Plan, name: str, least: int, label: str) -> RungStep | None:
    """Half of a count, down to `least`; None if it is not set or already there."""
    now = count(plan.value(name))
    if now is None or now <= least:
        return None
    goal = max(now // 2, least)
    return RungStep({name: goal}, value=str(goal), change=f"{label} {now} -> {goal}")


def halve_context(plan: Plan, name: str) -> RungStep | None:
    """Half of the context in whole granules, down to MIN_CONTEXT."""
    now = count(plan.value(name)) or 0
    goal = now // 2 // GRANULE * GRANULE
    if goal < MIN_CONTEXT:
        return None
    return RungStep({name: goal}, value=str(goal), change=f"context {now} -> {goal}")


def stop_drafting(plan: Plan, name: str) -> RungStep | None:
    """Drop the setting that drafts; None if the plan drafts nothing."""
    if not plan.mtp:
        return None
    return RungStep({name: None}, value="off", change=f"drafting {plan.mtp} -> off")
