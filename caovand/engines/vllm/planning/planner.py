"""The policy: from configuration and inventory to a plan, with its warnings and advice.

llama.cpp's GGUF files are refused: vLLM reads them slowly, and only with another folder's
config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from caovand.core.config.schema import Config, Mode
from caovand.core.facts.inventory import Inventory, ModelCard
from caovand.core.facts.occupancy import without_other_processes
from caovand.core.model_source.gguf import TYPE
from caovand.core.plan import Origin, Plan, Unplannable
from caovand.core.problem import Problem
from caovand.engines.common.gguf.converted import figures
from caovand.engines.common.plans import misfit
from caovand.engines.vllm.flags.spelling import whole_number
from caovand.engines.vllm.machine.ranks import tensor_groups
from caovand.engines.vllm.memory.settings import cards_of_plan
from caovand.engines.vllm.memory.shards import pinned_gib
from caovand.engines.vllm.planning.advice import (
    advise,
    in_fewer_bits,
    settings_to_lift,
)
from caovand.engines.vllm.planning.decisions import forecast
from caovand.engines.vllm.planning.devices import all_without_other_processes, memory_holders
from caovand.engines.vllm.planning.obstacles import shared_memory
from caovand.engines.vllm.planning.offers import with_longer_context
from caovand.engines.vllm.planning.partial_plan import PlanOnCards, chosen_by_policy, offloaded_gib
from caovand.engines.vllm.planning.planned_request import PlannedRequest
from caovand.engines.vllm.planning.request import VllmRequest, answer_tokens_s, refuse_crawling
from caovand.engines.vllm.planning.serving import (
    priority_warnings,
    prompt_warnings,
    refuse_without_audio_decoder,
)
from caovand.engines.vllm.planning.splits import idle_warnings
from caovand.engines.vllm.planning.warnings import warnings_of
from caovand.engines.vllm.sizing.offloading import step_cost

GGUF_FILE = (
    'use a GGUF version ([engine] kind = "llamacpp"): in llama.cpp the CPU computes with the '
    "weights in host memory"
)


def refuse_gguf(model: ModelCard) -> None:
    """Raise Unplannable for a model in GGUF files; the problem names the checkpoint to serve
    instead."""
    if model.gguf is None:
        return
    file = model.path.rpartition("/")[2]
    name = TYPE.split(file.removesuffix(".gguf"), maxsplit=1)[0] or "the model"
    raise Unplannable(
        f"cannot serve model {model.path} with vLLM: GGUF files are for llama.cpp; set [engine]"
        ' kind = "llamacpp", or download a 4-bit safetensors checkpoint, such as'
        f" {name}-AWQ or {name}-GPTQ-Int4"
    )


def refuse_wide_heads(plan: Plan, inventory: Inventory) -> None:
    """Raise Unplannable if the first prompt would end the engine, whatever the memory.

    A plan with the operator's own flags stands, and names them as its conflict.
    """
    if {"attention_backend", "attention_config", "dtype"} & set(plan.verbatim):
        return
    placed = PlanOnCards(plan, inventory, cards_of_plan(plan, inventory))
    for problem in shared_memory(placed):
        raise Unplannable(str(problem))


def _gguf_advice(case: PlannedRequest) -> tuple[str, ...]:
    """The advice to take a GGUF file instead of weights in host memory, if it answers faster."""
    gguf = figures(case.inventory.model, case.gpus, case.inventory.host)
    if gguf is None:
        return (GGUF_FILE,)
    if case.chosen.generates and gguf.tokens_s <= answer_tokens_s(case.chosen, case.plan):
        return ()
    return (f'use a GGUF file {gguf.text} ([engine] kind = "llamacpp")',)


SHORT_CONTEXT = 8192
"""A context below which the weights leave too little: two usual conversations."""


def _is_short(plan: Plan, model: ModelCard) -> bool:
    """Whether the policy's context is far shorter than the model's."""
    context = chosen_by_policy(plan, "max_model_len")
    return isinstance(context, int) and context < min(SHORT_CONTEXT, model.max_model_len)


def longest_context(config: Config, inventory: Inventory) -> int:
    """The longest context for which the policy finds settings, if the one in `config` does not fit;
    0 for none."""
    try:
        choice = VllmRequest(config, inventory).size().choice
    except Unplannable:
        return 0
    return choice.longest if choice and not choice.fits else 0


def make_plan(
    config: Config,
    inventory: Inventory,
    *,
    mode: Mode | None = None,
    mode_origin: Origin = "user",
    environ: Mapping[str, str] = MappingProxyType({}),
    remembered: Plan | None = None,
) -> Plan:
    """The plan for this configuration on this machine, as requested; raises Unplannable.

    See `VllmRequest`.
    """
    refuse_gguf(inventory.model)
    refuse_without_audio_decoder(inventory)
    request = VllmRequest(config, inventory, mode, mode_origin, environ, remembered)
    chosen = request.decide()
    plan = with_longer_context(request, chosen, request.write(chosen))
    refuse_wide_heads(plan, inventory)
    memory = forecast(plan, inventory)
    case = PlannedRequest(request, chosen, plan, memory)
    warnings: list[str | Problem] = [
        *warnings_of(chosen, plan),
        *prompt_warnings(chosen),
        *priority_warnings(chosen),
        *idle_warnings(chosen),
        *_cost_of_others(case),
        *_cost_of_weights(case),
    ]
    advice = plan.advice
    if memory.fits is False:
        advice = memory.advice or advise(case)
    if memory.fits is False and not memory.conflicts:  # which have their own warnings
        have, need = memory.kv_mib / 1024, memory.needed_mib / 1024
        short = f"{have:.1f} GiB left for the cache, {need:.1f} GiB needed"
        short = memory.lack or memory.shortage or short
        warnings.append(misfit(short, advice[:2]))
    return replace(plan, advice=advice, caveats=tuple(map(Problem.stated, warnings)))


def _cost_of_weights(case: PlannedRequest) -> list[str]:
    """A warning about weights in host memory, or about those that leave a short context. Raises
    Unplannable if the engine would crawl."""
    plan, inventory, chosen = case.plan, case.inventory, case.chosen
    offload = offloaded_gib(plan)
    if case.gpus and offload > 0:
        cost = step_cost(offload, inventory.model, case.gpus, 1 + plan.mtp)
        ranks = whole_number(plan.value("tensor_parallel_size")) or 1
        pinned = pinned_gib(offload, inventory.model, ranks) * tensor_groups(plan.values)
        remedies = tuple(filter(None, (in_fewer_bits(case), settings_to_lift(case))))
        refuse_crawling(chosen, plan, remedies)
        offloaded = f"{offload:g} GiB of weights per card stay in host memory"
        if chosen.generates:
            offloaded += f": about {answer_tokens_s(chosen, plan):.2g} tokens/s"
        better = remedies or _gguf_advice(case)
        return ["; ".join((offloaded, *better, f"{cost}, and {pinned:.1f} GiB are pinned"))]
    short = case.memory.fits and _is_short(plan, inventory.model)
    fewer_bits = in_fewer_bits(case) if short else ""
    return [f"these weights leave a short context: {fewer_bits}"] if fewer_bits else []


def _cost_of_others(case: PlannedRequest) -> list[str]:
    """A warning if other programs' memory shortens the context, or costs cards."""
    plan, inventory, others = case.plan, case.inventory, case.inventory.others
    context = chosen_by_policy(plan, "max_model_len")
    gpus, free = case.request.begin().gpus, all_without_other_processes(inventory)
    busy = without_other_processes(gpus) != gpus or free.others != others
    if not context or not busy:
        return []
    try:
        alone = case.request.lift({}, free).size()
    except Unplannable:
        return []
    lost, values = [], plan.values
    longer = alone.choice.candidate.context if alone.choice and not alone.why_unmodelled else 0
    if isinstance(context, int) and longer > context:
        lost.append(f"the context is {context} tokens instead of {longer}")
    used = len(cards_of_plan(plan, inventory))
    if len(alone.cards) > used:
        lost.append(f"{used} instead of {len(alone.cards)} cards serve the model")
        values = alone.values  # including those that were left out
    if not lost:
        return []
    remedy = "stop them and restart the engine, or choose other cards in [engine] gpus"
    return [f"{memory_holders(gpus, others, values)}: {' and '.join(lost)}; {remedy}"]
