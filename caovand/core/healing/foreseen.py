"""Predicts failures that a plan is certain to start into, and plans around them."""

from __future__ import annotations

from dataclasses import replace

from caovand.core.config import Config
from caovand.core.engine import Engine
from caovand.core.facts import occupancy
from caovand.core.facts.inventory import Inventory
from caovand.core.healing import ladder
from caovand.core.healing.failure import Foreseen
from caovand.core.plan import Plan


def lowered(engine: Engine, config: Config, plan: Plan, inventory: Inventory) -> Plan:
    """Apply the rungs that a cache found too small would lead to.

    They go on until the forecast fits; where none does, to the first plan that is not known to
    fail. Unchanged where the operator forbids them, or all of them are known to fail.
    """
    planning = engine.planning

    def known(one: Plan) -> Foreseen | None:
        return foreseen(engine, config, one, inventory)

    rules = ladder.rules_of(
        engine.healing,
        config.policy,
        lambda one: planning.conflicts(one, inventory),
        occupancy.used(inventory.gpus),
    )
    found, lower, worth_trying = known(plan), plan, None
    while found is not None and found.finding.failure == "kv-cache-short":
        step = ladder.decide(lower, found.finding, 1, rules).plan
        if step is None:
            break
        if planning.forecast(step, inventory).fits:
            worth_trying = step
            break
        problem = known(step)
        if problem is None and worth_trying is None:
            worth_trying = step
        lower, found = step, problem or found
    if worth_trying is None:
        return plan
    return replace(worth_trying, warnings=tuple(map(_as_asked, worth_trying.warnings)))


def _as_asked(warning: str) -> str:
    """Mark a warning as one about the plan that was asked for, not the one that fits."""
    return f"as asked for, {warning}" if warning.startswith("it does not fit") else warning


def foreseen(engine: Engine, config: Config, plan: Plan, inventory: Inventory) -> Foreseen | None:
    """The failure that a start of this plan is certain to end in; None if it should be tried."""
    found = engine.planning.foreseen(plan, inventory)
    insists = found is not None and found.unless_pinned in config.policy.pinned
    return None if insists else found
