"""What people should know of a plan. Typed keys are goals: a plan that misses one says so, or is
refused if the key is pinned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from caovand.core.addresses import is_loopback
from caovand.core.facts.shortfalls import old_driver, small_host
from caovand.core.plan import Plan, Unplannable
from caovand.engines.common.cards import without_tensor_cores
from caovand.engines.vllm import releases
from caovand.engines.vllm.flags import command_line
from caovand.engines.vllm.flags.command_line import unknown
from caovand.engines.vllm.flags.removed import SUCCESSORS
from caovand.engines.vllm.flags.spelling import option
from caovand.engines.vllm.flags.table import SECRETS
from caovand.engines.vllm.memory.candidate import free_share
from caovand.engines.vllm.memory.steps import graph_mode
from caovand.engines.vllm.planning import pipeline, precision
from caovand.engines.vllm.planning.decisions import GOALS, Goal, conflicts
from caovand.engines.vllm.planning.devices import left_out
from caovand.engines.vllm.planning.draft import Draft
from caovand.engines.vllm.planning.environment import allocator_warnings
from caovand.engines.vllm.planning.fit import cuts_graphs, graphs_for
from caovand.engines.vllm.planning.precision import (
    activation_warnings,
    attention,
    own_type,
    uncompiled_warnings,
)
from caovand.engines.vllm.planning.speculation import spoiling_warnings


def idle_keys(draft: Draft) -> list[str]:
    """Typed keys that mean nothing to this engine: those for cards, in a CPU build."""
    typed = {
        **{f"[{goal.section}] {goal.key}": _value(goal, draft) for goal in GOALS if goal.cuda_only},
        "[engine] gpus": draft.config.engine.gpus,
    }
    return [] if draft.cuda else [key for key, value in typed.items() if value is not None]


def refuse_unmet(draft: Draft, plan: Plan) -> None:
    """Raise Unplannable for the first pinned key that the plan does not reach."""
    for goal, typed, reason in _unmet(draft, plan):
        if draft.pinned(goal.key):
            raise Unplannable(
                f"cannot plan with [{goal.section}] {goal.key} = {_show(typed)}, which is pinned:"
                f' {reason}; take it out of [policy] pinned, or set it to "auto"'
            )


def unmet_warnings(draft: Draft, plan: Plan) -> Iterator[str]:
    """A warning for each key that the plan does not reach."""
    for goal, typed, reason in _unmet(draft, plan):
        yield (
            f"[{goal.section}] {goal.key} is {typed}, and {_show(goal.planned(plan))} is planned:"
            f" {reason}; {goal.remedy}"
        )


def _unmet(draft: Draft, plan: Plan) -> Iterator[tuple[Goal, Any, str]]:
    """Each key that the plan does not reach, with what was typed, and why."""
    for goal in GOALS:
        typed = _typed_value(goal, draft)
        if typed is None or {goal.setting, *goal.flags} & plan.verbatim:
            continue
        if goal.cuda_only and not draft.cuda:
            continue  # it means nothing to a CPU build, which has a warning of its own
        planned = goal.planned(plan)
        if planned == typed or (typed in ("none", False) and not planned):
            continue
        setting = plan.settings.get(goal.setting)
        if setting and setting.origin in ("ladder", "remembered"):
            continue  # reported with the ladder's steps
        yield goal, typed, setting.reason if setting else "this model has no use for it"


def _typed_value(goal: Goal, draft: Draft) -> Any:
    """What was typed for this key, None if nothing was, or if something else overrules it."""
    if goal.key == "mtp" and (draft.auto_spec or "").strip():
        return None
    if goal.key == "text_only" and not draft.model.vision:
        return None
    typed = _value(goal, draft)
    return None if typed in ("", False) and goal.key != "text_only" else typed


def _value(goal: Goal, draft: Draft) -> Any:
    return getattr(getattr(draft.config, goal.section), goal.key)


def _show(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else "none" if value is None else str(value)


def graph_warnings(draft: Draft, plan: Plan) -> list[str]:
    """Whole graphs that were asked for and that this release does not capture."""
    config = plan.value("compilation_config")
    if not isinstance(config, Mapping) or plan.value("enforce_eager"):
        return []
    mode = graph_mode(config, plan.value("optimization_level"))
    if not mode.startswith("FULL") or not cuts_graphs(draft):
        return []
    fixed = releases.name(releases.DRAFTS_IN_WHOLE_GRAPHS)
    other = f', set [policy] kv_cache_dtype = "{own_type(draft)}"' if not attention(draft) else ""
    return [
        f"vLLM {draft.engine.version} does not capture {mode} graphs while FlashInfer's attention"
        " verifies drafts, and cuts them at attention; for whole ones draft nothing ([policy] mtp ="
        f" 0){other}, or use vLLM {fixed} or newer"
    ]


TURBOQUANT_COST = {
    "turboquant_k8v4": "1.2 %",
    "turboquant_4bit_nc": "2.7 %",
    "turboquant_k3v4_nc": "10.6 %",
    "turboquant_3bit_nc": "20.6 %",
}
"""Perplexity that each cache type costs, by vLLM's own measurements."""


def warnings_of(draft: Draft, plan: Plan) -> list[str]:
    """Every warning of this plan, but for what it costs that others use the cards."""
    engine = draft.engine
    words = command_line.read(plan.extra_args, engine.flags, engine.switches)
    notes = map(str, draft.model.notes)
    found = [*_shortfalls(draft), *notes, *left_out(draft.config, draft.inventory, draft.verbatim)]
    found += [str(lack) for lack in (releases.untested(engine),) if lack]
    found += [
        *precision.turing_warnings(draft),
        *_flag_warnings(draft, words),
        *_open_doors(draft, plan),
    ]
    found += [*_lost_graph_mode(draft, plan), *graph_warnings(draft, plan)]
    found += [*uncompiled_warnings(draft), *allocator_warnings(draft), *activation_warnings(draft)]
    found += [*spoiling_warnings(draft), *pipeline.idle_cards(draft)]
    if not draft.engine.knows(draft.model.architecture):
        found.append(
            f"vLLM {draft.engine.version} has no model {draft.model.architecture}: it will try the"
            " code of Transformers, slowly, or refuse; install a vLLM that has it"
            " (`sudo caovanctl engine install`), or serve another model"
        )
    found += [f"{key} has no effect on a CPU build" for key in idle_keys(draft)]
    found += unmet_warnings(draft, plan)
    share = plan.value("gpu_memory_utilization")
    if draft.cards and isinstance(share, (int, float)):
        room = free_share(draft.cards)
        if share > room:
            found.append(
                f"gpu_memory_utilization {share} is more than the {room:.3f} that is free now"
            )
    found += map(str, conflicts(plan, draft.inventory, draft.cards))
    dtype = plan.settings.get("dtype")
    plain = draft.model.quantization is None  # else it is a conflict
    if plain and dtype and dtype.value == "float32" and dtype.origin == "policy":
        found.append(
            f"the model runs in float32, in twice the memory and slowly: {dtype.reason}; use a"
            " card of SM80 or newer, or another model"
        )
    if (slow := without_tensor_cores(draft.cards)) and not plain:
        found.append(
            f"{slow}, for which vLLM's kernels of {draft.model.quantization} weights are written;"
            ' a GGUF file with [engine] kind = "llamacpp" needs none'
        )
    kind = str(plan.value("kv_cache_dtype"))
    if kind in TURBOQUANT_COST:
        cost = TURBOQUANT_COST[kind]
        found.append(
            f"{kind} raises perplexity by {cost} (measured), and drafts are verified slowly"
        )
    return found


def _shortfalls(draft: Draft) -> list[str]:
    """What the machine lacks for a CUDA engine; of a CPU build the forecast tells."""
    if not draft.cuda:
        return []
    invented = draft.verbatim.get("load_format") == "dummy"
    ram = None if invented else small_host(draft.model, draft.host)
    return [str(lack) for lack in (old_driver(draft.gpus, draft.engine.cuda), ram) if lack]


def _lost_graph_mode(draft: Draft, plan: Plan) -> list[str]:
    """Verbatim graph settings replace ours as a whole: vLLM merges no two JSON values."""
    verbatim = draft.verbatim.get("compilation_config")
    if not draft.cuda or not isinstance(verbatim, Mapping) or verbatim.get("cudagraph_mode"):
        return []
    captured = graph_mode(verbatim, plan.value("optimization_level"))
    if plan.value("enforce_eager") or captured == "NONE":
        return []
    mode = graphs_for(draft)
    return [
        "--compilation-config names no cudagraph_mode, so vLLM captures its own"
        f" {captured} instead of {mode}, which would be planned here; add"
        f' "cudagraph_mode": "{mode}" to it'
    ]


def _open_doors(draft: Draft, plan: Plan) -> list[str]:
    """An address that others reach where no key is set that we know of."""
    config, host = draft.config, str(plan.value("host"))
    keyed = config.server.api_key_file or dict(config.engine.env).get("VLLM_API_KEY")
    if keyed or {"api_key", "uds"} & set(draft.verbatim) or is_loopback(host):
        return []
    return [
        f"the engine listens on {host} and the configuration sets no API key: unless caovand's own"
        " environment has VLLM_API_KEY, anyone who can reach that address can use the engine; set"
        ' [server] api_key_file, or host = "127.0.0.1"'
    ]


def _flag_warnings(draft: Draft, words: tuple[command_line.Flag, ...]) -> list[str]:
    found: list[str] = []
    seen = [
        flag for flag in command_line.public(command_line.carried(words)[1]) if flag.name in SECRETS
    ]
    for flag in command_line.public(words):
        word = option(flag.name)
        if not flag.name:
            found.append(f'"{flag.value}" in extra_args belongs to no flag')
        elif typed := unknown(flag, draft.engine):
            instead = SUCCESSORS.get(flag.name, "")
            text = f"vLLM {draft.engine.version} has no {typed}: it will refuse to start"
            found.append("; ".join(filter(None, (text, instead))))
        elif word in draft.engine.deprecated:
            found.append(f"{word} is deprecated in vLLM {draft.engine.version}")
        elif flag in seen:
            found.append(
                f"every user of this machine can see the values of several {word}: pass only one"
            )
    return found
