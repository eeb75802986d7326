"""Predict failures in which a start is certain to end, and plan around them."""

from __future__ import annotations

from dataclasses import replace

from caovand.core.config.schema import Config
from caovand.core.engine.record import Engine
from caovand.core.facts import occupancy
from caovand.core.facts.inventory import Inventory
from caovand.core.healing import ladder
from caovand.core.healing.failure import Foreseen
from caovand.core.plan import Plan


def foresee(
    engine: Engine, config: Config, plan: Plan, inventory: Inventory
) -> tuple[Plan, Foreseen | None]:
    """The plan to start, and the failure in which its start is certain to end, if any.

    A plan whose cache is too small takes the rungs of that failure until the forecast fits; if none
    fits, up to the first plan that is not certain to fail. The plan stays unchanged if the operator
    forbids the rungs, or if every plan is certain to fail.
    """
    planning = engine.planning

    def predict(one: Plan) -> Foreseen | None:
        found = planning.foreseen(one, inventory)
        insists = found is not None and found.unless_pinned in config.policy.pinned
        return None if insists else found

    known = predict(plan)
    rules = ladder.rules_of(
        engine.healing,
        config.policy,
        lambda one: planning.conflicts(one, inventory),
        occupancy.used_by_card(inventory.gpus),
    )
    found, lower, worth_trying = known, plan, None
    while found is not None and found.finding.failure == "kv-cache-short":
        step = ladder.decide(lower, found.finding, 1, rules).plan
        if step is None:
            break
        problem = predict(step)
        if problem is None and planning.forecast(step, inventory).fits:
            return _as_lowered(step), None
        if problem is None and worth_trying is None:
            worth_trying = step
        lower, found = step, problem or found
    return (plan, known) if worth_trying is None else (_as_lowered(worth_trying), None)


def _as_lowered(plan: Plan) -> Plan:
    """Mark warnings about requested settings as such."""
    return replace(plan, warnings=tuple(map(_as_asked, plan.warnings)))


def _as_asked(warning: str) -> str:
    return f"as asked for, {warning}" if warning.startswith("it does not fit") else warning
