"""Predict failures in which a start is certain to end, and plan around them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from caovand.core.config.schema import Config
from caovand.core.engine.record import Engine
from caovand.core.facts import occupancy
from caovand.core.facts.inventory import Inventory
from caovand.core.healing import ladder
from caovand.core.healing.failure import Foreseen
from caovand.core.plan import Misfit, Plan, Setting, Unplannable
from caovand.core.problem import Problem

CACHE_FAILURES = ("kv-cache-short", "kv-cache-none")


def foresee(
    engine: Engine,
    config: Config,
    plan: Plan,
    inventory: Inventory,
    replan: Callable[[Config], Plan] | None = None,
) -> tuple[Plan, Foreseen | None]:
    """The plan to start, and the failure in which its start is certain to end, if any.

    A configured context that fits with no settings is replaced by the longest that does, with the
    settings that `replan` decides for it. Otherwise a plan whose cache is too small takes the rungs
    of that failure until the forecast fits; if none fits, up to the first plan that is not certain
    to fail. The plan stays unchanged if the operator forbids the rungs, or if every plan is certain
    to fail.
    """
    planning = engine.planning

    def predict(candidate: Plan) -> Foreseen | None:
        problem = planning.foreseen(candidate, inventory)
        insists = problem is not None and problem.unless_pinned in config.policy.pinned
        return None if insists else problem

    known = predict(plan)
    # Other programs may exit: rungs are then undone, but a separate plan would stay.
    may_shorten = known and not known.hold and known.finding.failure in CACHE_FAILURES
    if known and may_shorten and replan is not None:
        shorter = _with_longest_context(
            engine, config, plan, inventory, replan, known.unless_pinned
        )
        if shorter is not None and predict(shorter) is None:
            return shorter, None
    rules = ladder.rules_of(
        engine.healing,
        config.policy,
        lambda candidate: planning.conflicts(candidate, inventory),
        occupancy.used_by_card(inventory.gpus),
    )
    foreseen, lower, worth_trying = known, plan, None
    while foreseen is not None and foreseen.finding.failure == "kv-cache-short":
        step = ladder.decide(lower, foreseen.finding, 1, rules).plan
        if step is None:
            break
        problem = predict(step)
        if problem is None and planning.forecast(step, inventory).fits:
            return _mark_lowered(step), None
        if problem is None and worth_trying is None:
            worth_trying = step
        lower, foreseen = step, problem or foreseen
    return (plan, known) if worth_trying is None else (_mark_lowered(worth_trying), None)


def _with_longest_context(
    engine: Engine,
    config: Config,
    plan: Plan,
    inventory: Inventory,
    replan: Callable[[Config], Plan],
    setting: str,
) -> Plan | None:
    """The plan with the longest context that fits instead of the configured one, never shorter than
    without one; None if the operator pinned it, or nothing fits. `setting` is the context's name.
    """
    asked, policy = config.model.max_model_len, config.policy
    insists = policy.strict or setting in policy.pinned or setting in plan.verbatim
    forbidden = policy.ladder is not None and "context" not in policy.ladder
    if asked is None or insists or forbidden or plan.taken:
        return None
    longest, plans = engine.planning.longest(config, inventory), []
    for length in (longest, None) if 0 < longest < asked else ():
        with suppress(Unplannable):
            plans.append(replan(replace(config, model=replace(config.model, max_model_len=length))))
    fitting = [plan for plan in plans if engine.planning.forecast(plan, inventory).fits]
    best = max(fitting, key=lambda plan: engine.planning.context(plan) or 0, default=None)
    return _note_shortened(best, asked, setting, plan.advice) if best else None


def _note_shortened(plan: Plan, asked: int, setting: str, advice: tuple[str, ...]) -> Plan:
    """Say in the plan that its context is shorter than the configured one, and which settings would
    make that fit.
    """
    context = plan.value(setting)
    reason = (
        f"[model] max_model_len = {asked} does not fit; this is the longest that fits, with a "
        "margin for the forecast's error"
    )
    fact = f"[model] max_model_len = {asked} does not fit: the plan has {context}"
    others = [remedy for remedy in advice if not remedy.startswith(setting)][:2]
    caveat = Problem("", fact, "; ".join(others))
    settings = {**plan.settings, setting: Setting(context, "policy", reason)}
    return replace(plan, settings=settings, caveats=(*plan.caveats, caveat))


def _mark_lowered(plan: Plan) -> Plan:
    """Say that the plan's misfit is that of the requested settings."""
    return replace(plan, caveats=tuple(map(_as_asked, plan.caveats)))


def _as_asked(caveat: Problem) -> Problem:
    if not isinstance(caveat, Misfit):
        return caveat
    return Problem("", f"as requested, {caveat.message}", caveat.remedy)
