"""Typed keys are goals: whatever of them a plan does not reach is said, or refused where pinned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from caovand.core.draft import Draft, Unplannable
from caovand.core.plan import Plan
from caovand.core.speculation import OTHER_WAYS


def _graphs(plan: Plan) -> Any:
    """The plan's CUDA graphs in the words of the key."""
    config = plan.value("compilation_config")
    mode = config.get("cudagraph_mode") if isinstance(config, dict) else None
    return "none" if plan.value("enforce_eager") else str(mode).lower()


@dataclass(frozen=True)
class Goal:
    """A key, the setting it becomes, and what to do where it cannot be had.

    `flags` are verbatim flags that overrule the key, which is the operator's own doing. Without
    `value` the setting has the key's value as it is.
    """

    section: str
    key: str
    setting: str
    remedy: str
    flags: tuple[str, ...] = ()
    value: Callable[[Plan], Any] | None = None
    cuda_only: bool = False

    def planned(self, plan: Plan) -> Any:
        return self.value(plan) if self.value else plan.value(self.setting)


KEEP = "name it in [policy] pinned, and something else gives way"
LEAVE = 'set it to "auto"'
FREE = "stop what else uses the cards"
SPEC = ("speculative_config", *OTHER_WAYS)
GOALS = (
    Goal("model", "served_name", "served_model_name", LEAVE),
    Goal("model", "revision", "revision", LEAVE),
    Goal("model", "max_model_len", "max_model_len", LEAVE),
    Goal("model", "chat_template", "chat_template", LEAVE),
    Goal("model", "text_only", "language_model_only", LEAVE),
    Goal("model", "trust_remote_code", "trust_remote_code", LEAVE),
    Goal("server", "tool_call_parser", "tool_call_parser", LEAVE),
    Goal("server", "reasoning_parser", "reasoning_parser", LEAVE),
    Goal("policy", "mtp", "speculative_config", LEAVE, SPEC, lambda plan: plan.mtp),
    Goal("policy", "gpu_memory_utilization", "gpu_memory_utilization", FREE, cuda_only=True),
    Goal("policy", "kv_cache_dtype", "kv_cache_dtype", LEAVE),
    Goal("policy", "max_num_seqs", "max_num_seqs", LEAVE),
    Goal("policy", "max_num_batched_tokens", "max_num_batched_tokens", LEAVE),
    Goal("policy", "tensor_parallel_size", "tensor_parallel_size", LEAVE),
    Goal("policy", "dtype", "dtype", LEAVE),
    Goal("policy", "cuda_graphs", "enforce_eager", KEEP,
         ("enforce_eager", "compilation_config"), _graphs, cuda_only=True),
)  # fmt: skip


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
    typed = getattr(getattr(draft.config, goal.section), goal.key)
    return None if typed in ("", False) and goal.key != "text_only" else typed


def _shown(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else "none" if value is None else str(value)
