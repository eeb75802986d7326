"""Warnings about a plan, and the failure in which its start is certain to end.

Configured keys are goals: a plan that misses one says so, or is refused if the key is pinned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from caovand.core.addresses import is_loopback
from caovand.core.facts.shortfalls import old_driver
from caovand.core.plan import Plan, Unplannable
from caovand.core.problem import Problem
from caovand.engines.common.cards import without_tensor_cores
from caovand.engines.common.chat_formats import unparsed_warnings
from caovand.engines.vllm import releases
from caovand.engines.vllm.flags import command_line
from caovand.engines.vllm.flags.spelling import option
from caovand.engines.vllm.flags.table import SECRETS, SUCCESSORS
from caovand.engines.vllm.memory.candidate import free_share
from caovand.engines.vllm.memory.steps import graph_mode
from caovand.engines.vllm.planning import parallel, precision, splits
from caovand.engines.vllm.planning.decisions import GOALS, Goal, conflicts
from caovand.engines.vllm.planning.devices import unused_card_warnings
from caovand.engines.vllm.planning.drafters import unused_warnings
from caovand.engines.vllm.planning.environment import allocator_warnings, order_warnings
from caovand.engines.vllm.planning.fit import cuts_graphs, graphs_for
from caovand.engines.vllm.planning.inputs import vision_warnings
from caovand.engines.vllm.planning.int8 import ACTIVATIONS, HEAD
from caovand.engines.vllm.planning.loading import lack_of_memory
from caovand.engines.vllm.planning.partial_plan import PartialPlan, chosen_by_policy
from caovand.engines.vllm.planning.precision import attention, own_type, uncompiled_warnings
from caovand.engines.vllm.planning.speculation import corruption_warnings


def idle_keys(partial: PartialPlan) -> list[str]:
    """Configured keys that have no effect on this engine: those for cards, in a CPU build."""
    typed = {
        **{
            f"[{goal.section}] {goal.key}": _value(goal, partial)
            for goal in GOALS
            if goal.cuda_only
        },
        "[engine] gpus": partial.config.engine.gpus,
    }
    return [] if partial.cuda else [key for key, value in typed.items() if value is not None]


def refuse_missed_pins(partial: PartialPlan, plan: Plan) -> None:
    """Raise Unplannable for the first pinned key that the plan does not reach."""
    for goal, typed, reason in _missed_goals(partial, plan):
        if partial.pinned(goal.key):
            raise Unplannable(
                f"cannot plan with [{goal.section}] {goal.key} = {_show(typed)}, which is pinned:"
                f' {reason}; remove it from [policy] pinned, or set it to "auto"'
            )


def missed_goal_warnings(partial: PartialPlan, plan: Plan) -> Iterator[str]:
    """A warning for each key that the plan does not reach."""
    for goal, typed, reason in _missed_goals(partial, plan):
        yield (
            f"[{goal.section}] {goal.key} is {typed}, but {_show(goal.planned(plan))} is "
            f"planned: {reason}; {goal.remedy}"
        )


def _missed_goals(partial: PartialPlan, plan: Plan) -> Iterator[tuple[Goal, Any, str]]:
    """Each key that the plan does not reach, with the configured value, and why."""
    for goal in GOALS:
        typed = _typed_value(goal, partial)
        if typed is None or {goal.setting, *goal.flags} & plan.verbatim:
            continue
        if goal.cuda_only and not partial.cuda:
            continue  # it has no effect on a CPU build, which has its own warning
        planned = goal.planned(plan)
        if planned == typed or (typed in ("none", False) and not planned):
            continue
        setting = plan.settings.get(goal.setting)
        if setting and setting.origin in ("ladder", "remembered"):
            continue  # reported with the ladder's steps
        yield goal, typed, setting.reason if setting else "this model does not use it"


def _typed_value(goal: Goal, partial: PartialPlan) -> Any:
    """The value configured for this key; None without one, or if something else overrides it."""
    if goal.key == "mtp" and (partial.auto_spec or "").strip():
        return None
    if goal.key == "text_only" and not partial.model.vision:
        return None
    typed = _value(goal, partial)
    return None if typed in ("", False) and goal.key != "text_only" else typed


def _value(goal: Goal, partial: PartialPlan) -> Any:
    return getattr(getattr(partial.config, goal.section), goal.key)


def _show(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else "none" if value is None else str(value)


def graph_warnings(partial: PartialPlan, plan: Plan) -> list[str]:
    """Warnings about full graphs that were requested but that this release does not capture."""
    config = plan.value("compilation_config")
    if not isinstance(config, Mapping) or plan.value("enforce_eager"):
        return []
    mode = graph_mode(config, plan.value("optimization_level"))
    if not mode.startswith("FULL") or not cuts_graphs(partial):
        return []
    fixed = releases.name(releases.DRAFTS_IN_WHOLE_GRAPHS)
    other = (
        f', set [policy] kv_cache_dtype = "{own_type(partial)}"' if not attention(partial) else ""
    )
    return [
        f"vLLM {partial.engine.version} does not capture {mode} graphs while FlashInfer's "
        "attention verifies drafts, and cuts them at attention; for full graphs turn drafting "
        f"off ([policy] mtp = 0){other}, or use vLLM {fixed} or newer"
    ]


TURBOQUANT_COST = {
    "turboquant_k8v4": "1.2 %",
    "turboquant_4bit_nc": "2.7 %",
    "turboquant_k3v4_nc": "10.6 %",
    "turboquant_3bit_nc": "20.6 %",
}
"""Perplexity that each cache type costs, by vLLM's own measurements."""


def warnings_of(partial: PartialPlan, plan: Plan) -> list[str | Problem]:
    """Every warning about this plan, except for the cost of other processes on the cards."""
    engine = partial.engine
    words = command_line.read(plan.extra_args, engine.flags, engine.switches)
    return [
        *_shortfall_warnings(partial),
        *partial.model.notes,
        *unused_card_warnings(partial.config, partial.inventory, partial.values),
        *_release_warnings(partial),
        *precision.turing_warnings(partial),
        *precision.garbled_cache_warnings(partial),
        *vision_warnings(partial),
        *unparsed_warnings(partial.model, partial.settings),
        *_flag_warnings(partial, words),
        *_exposure_warnings(partial, plan),
        *_graph_mode_warnings(partial, plan),
        *graph_warnings(partial, plan),
        *uncompiled_warnings(partial),
        *allocator_warnings(partial),
        *order_warnings(partial, plan),
        *ACTIVATIONS.warnings(partial),
        *HEAD.warnings(partial),
        *corruption_warnings(partial),
        *unused_warnings(partial),
        *parallel.idle_cards(partial),
        *splits.uneven_experts(partial),
        *_unknown_model_warnings(partial),
        *(f"{key} has no effect on a CPU build" for key in idle_keys(partial)),
        *missed_goal_warnings(partial, plan),
        *_utilization_warnings(partial, plan),
        *conflicts(plan, partial.inventory, partial.cards),
        *_precision_warnings(partial, plan),
    ]


def _release_warnings(partial: PartialPlan) -> Iterator[str]:
    engine = partial.engine
    if problem := releases.untested(engine):
        yield str(problem)
    unified = any(gpu.unified for gpu in partial.cards)
    if unified and engine.release < releases.UNIFIED_MEMORY_RELEASED:
        yield (
            f"vLLM {engine.version} holds memory while loading that a host with unified memory "
            "cannot spare: large models fail or hang the machine; sudo caovanctl engine install "
            f"{releases.name(releases.NEWEST_TESTED)}.0"
        )


def _unknown_model_warnings(partial: PartialPlan) -> Iterator[str]:
    engine, architecture = partial.engine, partial.model.architecture
    if not engine.knows(architecture):
        yield (
            f"vLLM {engine.version} has no model {architecture}: vLLM will fall back to the "
            "slower Transformers code, or refuse; install a vLLM that has it (`sudo caovanctl "
            "engine install`), or serve another model"
        )


def _utilization_warnings(partial: PartialPlan, plan: Plan) -> Iterator[str]:
    share = plan.value("gpu_memory_utilization")
    if partial.cards and isinstance(share, (int, float)):
        room = free_share(partial.cards)
        if share > room:
            yield f"gpu_memory_utilization {share} is more than the {room:.3f} that is free now"


def _precision_warnings(partial: PartialPlan, plan: Plan) -> Iterator[str]:
    """Warnings about types that cost speed, memory or exactness."""
    dtype = plan.settings.get("dtype")
    plain = partial.model.quantization is None  # otherwise it is a conflict
    if plain and dtype and chosen_by_policy(plan, "dtype") == "float32":
        yield (
            f"the model runs in float32, slowly and with twice the memory: {dtype.reason}; use a "
            "card of SM80 or newer, or another model"
        )
    in_half = chosen_by_policy(plan, "dtype") == "half"
    if (slow := without_tensor_cores(partial.cards)) and (in_half or not plain):
        fact = "without which float16 is up to nine times slower"
        if not plain:
            fact = f"for which vLLM's kernels of {partial.model.quantization} weights are written"
        yield f'{slow}, {fact}; a GGUF file with [engine] kind = "llamacpp" needs none'
    if rounded := chosen_by_policy(plan, "quantization"):
        name = partial.model.path.rstrip("/").rpartition("/")[2]
        yield (
            f"the weights are quantised to {rounded} while loading: in 16 bits they leave no "
            f"room here; a checkpoint such as {name}-FP8 or {name}-AWQ loads faster"
        )
    kind = str(plan.value("kv_cache_dtype"))
    if cost := TURBOQUANT_COST.get(kind):
        yield f"{kind} raises perplexity by {cost} (measured), and drafts are verified slowly"


def _shortfall_warnings(partial: PartialPlan) -> list[str]:
    """A warning for each thing that the machine lacks for a CUDA engine.

    For a CPU build the forecast says it.
    """
    if not partial.cuda:
        return []
    ram = lack_of_memory(partial.model, partial.host, partial.verbatim.get("load_format"))
    return [str(lack) for lack in (old_driver(partial.gpus, partial.engine.cuda), ram) if lack]


def _graph_mode_warnings(partial: PartialPlan, plan: Plan) -> list[str]:
    """Warn that verbatim graph settings replace ours as a whole: vLLM does not merge JSON
    values."""
    verbatim = partial.verbatim.get("compilation_config")
    if not partial.cuda or not isinstance(verbatim, Mapping) or verbatim.get("cudagraph_mode"):
        return []
    captured = graph_mode(verbatim, plan.value("optimization_level"))
    if plan.value("enforce_eager") or captured == "NONE":
        return []
    mode = graphs_for(partial)
    if captured == mode:
        return []
    return [
        "--compilation-config has no cudagraph_mode, so vLLM captures its own"
        f" {captured} instead of {mode}, which would be planned here; add"
        f' "cudagraph_mode": "{mode}" to it'
    ]


def _exposure_warnings(partial: PartialPlan, plan: Plan) -> list[str]:
    """Warn about an address that others can reach without a key that we know of."""
    config, host = partial.config, str(plan.value("host"))
    keyed = config.server.api_key_file or dict(config.engine.env).get("VLLM_API_KEY")
    if keyed or {"api_key", "uds"} & set(partial.verbatim) or is_loopback(host):
        return []
    return [
        f"the engine listens on {host}, and the configuration sets no API key: unless caovand's "
        "own environment has VLLM_API_KEY, anyone who can reach that address can use the "
        'engine; set [server] api_key_file, or host = "127.0.0.1"'
    ]


def _flag_warnings(partial: PartialPlan, words: tuple[command_line.Flag, ...]) -> list[str]:
    warnings: list[str] = []
    on_command_line = command_line.public(command_line.carry_secrets(words)[1])
    seen = [flag for flag in on_command_line if flag.name in SECRETS]
    for flag in command_line.public(words):
        word = option(flag.name)
        if not flag.name:
            warnings.append(f'"{flag.value}" in extra_args does not belong to any flag')
        elif typed := command_line.unknown_flag(flag, partial.engine):
            instead = SUCCESSORS.get(flag.name, "")
            text = f"vLLM {partial.engine.version} has no {typed} and will refuse to start"
            warnings.append("; ".join(filter(None, (text, instead))))
        elif word in partial.engine.deprecated:
            warnings.append(f"{word} is deprecated in vLLM {partial.engine.version}")
        elif flag in seen:
            warnings.append(
                f"every user of this machine can see the values if several {word} are passed: "
                "pass only one"
            )
    return warnings
