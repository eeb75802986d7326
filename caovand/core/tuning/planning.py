"""Apply the draft tuner's depth to a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from caovand.core.config.schema import Config, PolicySection
from caovand.core.plan import Plan, Unplannable
from caovand.core.tuning.record import TuningRecord


def may_tune(plan: Plan) -> bool:
    """Whether the tuner may choose this plan's depth."""
    return plan.policy_drafts and not plan.taken


def depth_for(plan: Plan, policy: PolicySection, records: Mapping[str, TuningRecord]) -> int | None:
    """The chosen depth that replaces the policy's in `plan`; None to keep the policy's."""
    record = records.get(plan.step_time_key)
    if policy.tune != "apply" or record is None or not may_tune(plan):
        return None
    return record.depth if record.own == plan.mtp != record.depth else None


def tuned_plan(
    plan: Plan,
    depth: int | None,
    config: Config,
    make: Callable[[Config], Plan],
    fits: Callable[[Plan], bool | None],
) -> Plan:
    """The plan with that depth; the original plan without one, or if anything else would get
    worse."""
    if depth is None:
        return plan
    try:
        other = make(replace(config, policy=replace(config.policy, mtp=depth)))
    except Unplannable:
        return plan
    kept = other.tuned(plan) if other.mtp == depth and fits(other) is not False else None
    return kept or plan
