"""Typed keys are goals: whatever of them a plan does not reach is said, or refused where pinned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from caovand.core.plan import Plan, Unplannable
from caovand.engines.vllm.planning.decisions import GOALS, Goal
from caovand.engines.vllm.planning.draft import Draft


def idle_keys(draft: Draft) -> list[str]:
    """Typed keys that mean nothing to this engine: those for cards, in a CPU build."""
    typed = {
        **{f"[{goal.section}] {goal.key}": _value(goal, draft) for goal in GOALS if goal.cuda_only},
        "[engine] gpus": draft.config.engine.gpus,
    }
    return [] if draft.cuda else [key for key, value in typed.items() if value is not None]


def given_up(draft: Draft, plan: Plan) -> Iterator[str]:
    """A warning for each key that the plan does not reach; Unplannable where it is pinned."""
    for goal in GOALS:
        typed = _typed(goal, draft)
        if typed is None or {goal.setting, *goal.flags} & plan.verbatim:
            continue
        if goal.cuda_only and not draft.cuda:
            continue  # told already: it means nothing to a CPU build
        planned = goal.planned(plan)
        if planned == typed or (typed in ("none", False) and not planned):
            continue
        setting = plan.settings.get(goal.setting)
        if setting and setting.origin in ("ladder", "remembered"):
            continue  # told with the ladder's steps
        reason = setting.reason if setting else "this model has no use for it"
        where = f"[{goal.section}] {goal.key}"
        if draft.pinned(goal.key):
            raise Unplannable(
                f"cannot plan with {where} = {_shown(typed)}, which is pinned: {reason}; take it"
                f' out of [policy] pinned, or set it to "auto"'
            )
        yield f"{where} is {typed}, and {_shown(planned)} is planned: {reason}; {goal.remedy}"


def _typed(goal: Goal, draft: Draft) -> Any:
    """What was typed for this key, None where nothing was, or where something else overrules it."""
    if goal.key == "mtp" and (draft.auto_spec or "").strip():
        return None
    if goal.key == "text_only" and not draft.model.vision:
        return None
    typed = _value(goal, draft)
    return None if typed in ("", False) and goal.key != "text_only" else typed


def _value(goal: Goal, draft: Draft) -> Any:
    return getattr(getattr(draft.config, goal.section), goal.key)


def _shown(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else "none" if value is None else str(value)
