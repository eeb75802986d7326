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

    Unchanged where the operator forbids them, or none of them is forecast to help.
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
    lower, found = plan, known(plan)
    while found is not None and found.finding.failure == "kv-cache-short":
        step = ladder.decide(lower, found.finding, 1, rules).plan
        if step is None:
            break
        if planning.forecast(step, inventory).fits:
            return replace(step, warnings=tuple(map(_as_asked, step.warnings)))
        lower, found = step, known(step) or found
    return plan


def _as_asked(warning: str) -> str:
    """Mark a warning as one about the plan that was asked for, not the one that fits."""
    return f"as asked for, {warning}" if warning.startswith("it does not fit") else warning


def foreseen(engine: Engine, config: Config, plan: Plan, inventory: Inventory) -> Foreseen | None:
    """The failure that a start of this plan is certain to end in; None if it should be tried."""
    found = engine.planning.foreseen(plan, inventory)
    insists = found is not None and found.unless_pinned in config.policy.pinned
    return None if insists else found
