"""The sizes in a plan for SGLang: cards, share of memory, context, requests, tokens of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from caovand.core.config.schema import Config
from caovand.core.facts.inventory import Gpu, Inventory, ModelCard
from caovand.core.plan import Setting
from caovand.engines.common.drafting import contested
from caovand.engines.common.plans import refuse_beyond_limit
from caovand.engines.common.speeds import all_linked, host_link
from caovand.engines.common.tensors import has_few_active
from caovand.engines.sglang.memory.load import AT_LOAD, SglangLoad
from caovand.engines.sglang.memory.steps import MAX_GRAPH, of_the_host, usual_share, usual_step
from caovand.engines.sglang.options import (
    CACHE_TYPE,
    CONTEXT,
    GRAPH_SIZES,
    MAX_GRAPH_OPTION,
    NO_PREFIXES,
    QUANTIZATION,
    RANKS,
    REPLICAS,
    REQUESTS,
    SHARE,
    SLOTS,
    STEP,
)
from caovand.engines.sglang.planning import cards
from caovand.engines.sglang.planning.loads import SizingInput
from caovand.engines.sglang.planning.sizing import (
    DecidedSettings,
    SizedLoad,
    choose_load,
    decide_settings,
)
from caovand.engines.sglang.planning.workloads import WORKLOADS

FAR_LONGER = 1.25
"""The factor by which a longer context is worth more than drafts."""
GRANULE, MIN_CONTEXT = 256, 2048


def memory_settings(
    config: Config,
    inventory: Inventory,
    gpus: tuple[Gpu, ...],
    typed: Mapping[str, Any],
    drafts: Setting,
    *,
    old: bool,
) -> dict[str, Setting]:
    """The settings that divide memory. Raises Unplannable."""
    request = SizingInput(config, inventory.model, gpus, typed, old)
    known = decide_settings(request, inventory)
    depth = (drafts.value or {}).get("num_speculative_tokens", 0)
    return _settings_of(request, known, choose_load(request, inventory, known, depth))


def _settings_of(
    request: SizingInput, known: DecidedSettings, sized: SizedLoad
) -> dict[str, Setting]:
    """The options that give SGLang this load, each with its reason."""
    config, model, gpus, typed = request.config, request.model, request.gpus, request.typed
    load, cache_type = sized.load, known.cache_type
    if load.cache_type != sized.begin.cache_type:
        kept = "fewer requests" if config.policy.workload == "batch" else "a shorter context"
        reason = f"a cache of the model's own type would hold {kept}"
        cache_type = Setting(load.cache_type, "policy", reason)
    settings = {
        CONTEXT: _context(config, model, typed, sized.tokens),
        RANKS: _ranks(known.ranks, sized, model, gpus),
        SHARE: _share(config, model, load, gpus),
        REQUESTS: sized.requests,
        STEP: _step(config, load, gpus),
        CACHE_TYPE: cache_type,
        "dtype": known.dtype,
    }
    if load.graphs and not GRAPH_SIZES & typed.keys():
        reason = (
            "the maximum number of requests at once: SGLang's default would run larger steps "
            "without graphs"
        )
        settings[MAX_GRAPH_OPTION] = Setting(min(load.requests, MAX_GRAPH), "policy", reason)
    if sized.replicas > 1:
        reason = (
            "for batch workloads: each replica serves its own requests without waiting for the "
            "others' cards"
        )
        settings[REPLICAS] = Setting(sized.replicas, "policy", reason)
    return {**settings, **sized.grouped, **_pools(load, typed)}


def _ranks(
    stated: Setting | None, sized: SizedLoad, model: ModelCard, gpus: tuple[Gpu, ...]
) -> Setting:
    """The number of cards that a replica is split over, and why cards stay idle."""
    ranks, replicas = sized.load.ranks, sized.replicas
    if stated is not None:
        split = stated
    elif replicas > 1:
        reason = f"each of {replicas} replicas has room for a long context"
        split = Setting(ranks, "policy", reason)
    else:
        reason = _why_split(ranks, sized.splits[-1], sized.gain, gpus)
        split = Setting(ranks, "policy", reason)
    if split.origin != "policy":
        return split
    return replace(split, reason=split.reason + _idle(model, gpus, ranks * replicas))


def _pools(chosen: SglangLoad, typed: Mapping[str, Any]) -> dict[str, Setting]:
    """The options of recurrent states, prefixes and weights in which a load differs from SGLang's
    own."""
    pools = {}
    if chosen.slots and SLOTS not in typed:
        reason = "recurrent states, five per request: SGLang's default would shrink the cache"
        pools[SLOTS] = Setting(chosen.slots, "policy", reason)
    if not (chosen.prefixes or NO_PREFIXES in typed):
        reason = (
            "for batch workloads: with a prefix cache each request needs five recurrent states, "
            "without it one"
        )
        pools[NO_PREFIXES] = Setting(True, "policy", reason)
    if chosen.rounded and QUANTIZATION not in typed:
        reason = "16-bit weights leave too little room: SGLang quantises them once they are loaded"
        pools[QUANTIZATION] = Setting(AT_LOAD, "policy", reason)
    return pools


def _why_split(ranks: int, most: int, gain: float, gpus: tuple[Gpu, ...]) -> str:
    """Why a model is split over so many cards that are not all linked."""
    generation, lanes, _ = host_link(gpus)
    if gain and all_linked(gpus):
        return f"{ranks} cards finish about {gain:.1f} times the requests of a smaller split"
    if gain:
        return (
            f"{ranks} cards finish about {gain:.1f} times the requests of a smaller split, although"
            f" they exchange data over PCIe {generation}.0 x{lanes}"
        )
    if ranks == most and ranks > 1:
        return f"{ranks} cards: fewer have no room for the weights and a long context"
    return (
        "the fewest cards with room for the model: they are not linked by NVLink, and more "
        f"cards would finish hardly more requests over PCIe {generation}.0 x{lanes}"
    )


def _idle(model: ModelCard, gpus: tuple[Gpu, ...], used: int) -> str:
    """Why cards stay idle although the model is split over as many as possible; "" if none does."""
    *fewer, largest = cards.splits(model, gpus)
    if not largest <= used < len(gpus):
        return ""
    sizes = f"{', '.join(map(str, fewer))} or {largest}" if fewer else "one card"
    idle = "1 stays" if len(gpus) - used == 1 else f"{len(gpus) - used} stay"
    return f"; {idle} idle: the model can be split over {sizes} only"


def _share(config: Config, model: ModelCard, chosen: SglangLoad, gpus: tuple[Gpu, ...]) -> Setting:
    if config.policy.gpu_memory_utilization is not None:
        return Setting(chosen.share, "user", "[policy] gpu_memory_utilization")
    reason = "of the memory free at the start; the rest is for activations and CUDA graphs"
    if chosen.share > usual_share(model, chosen, gpus):
        reason += " of this model; SGLang's default would reserve more and shrink the cache"
    host = max(map(of_the_host, gpus))
    reason += f"; {host} MiB of it remain for the host (unified memory)" if host else ""
    return Setting(chosen.share, "policy", reason)


def _step(config: Config, chosen: SglangLoad, gpus: tuple[Gpu, ...]) -> Setting:
    if (stated := config.policy.max_num_batched_tokens) is not None:
        return Setting(stated, "user", "[policy] max_num_batched_tokens")  # divided by SGLang
    if chosen.attention_groups > 1:
        each, groups = chosen.step, chosen.attention_groups
        reason = f"SGLang divides it: {each} tokens for the requests on each of {groups} cards"
        return Setting(each * groups, "policy", reason)
    if chosen.step == usual_step(gpus):
        return Setting(chosen.step, "policy", "usual for cards of this size")
    reason = "shorter than usual for such cards: activations would leave too little cache"
    return Setting(chosen.step, "policy", reason)


def _context(
    config: Config, model: ModelCard, typed: Mapping[str, Any], tokens: int | None
) -> Setting:
    limit, stated = model.max_model_len, config.model.max_model_len
    if CONTEXT in typed:
        return Setting(typed[CONTEXT], "user", "passed verbatim")
    if stated is not None:
        refuse_beyond_limit(config, model)
        return Setting(stated, "user", "[model] max_model_len")
    if tokens is None:
        return Setting(
            limit, "policy", "the model's own limit; the capacity of its cache is not modelled"
        )
    if tokens >= limit:
        return Setting(limit, "policy", "the model's own limit")
    if tokens < MIN_CONTEXT:
        return Setting(
            min(MIN_CONTEXT, limit), "policy", "no context fits; trying the smallest useful one"
        )
    return Setting(tokens // GRANULE * GRANULE, "policy", "the longest that fits the cache")


def drafts_cost(
    config: Config,
    model: ModelCard,
    drafting: Mapping[str, Setting],
    plain: Mapping[str, Setting],
) -> str:
    """The cost of drafts, by their weights and recurrent states, if it outweighs them; "" if they
    may stay.

    With few active parameters their gain is contested: any cost is worth more.
    """
    workload = WORKLOADS[config.policy.workload]
    requests, more = drafting[REQUESTS].value, plain[REQUESTS].value
    context, longer = drafting[CONTEXT].value, plain[CONTEXT].value
    usual = workload.requests
    if has_few_active(model) and (context < longer or min(requests, usual) < min(more, usual)):
        return (
            f"a context of {context} and {requests} requests at once instead of {longer} and"
            f" {more}, and {contested(model)}"
        )
    if requests < min(workload.min_requests, more):
        return f"{requests} requests at once instead of {more}"
    if context <= MIN_CONTEXT:
        return "no context"
    short = context < min(workload.sufficient_context, model.max_model_len)
    return (
        f"a context of {context} instead of {longer}"
        if short and longer > context * FAR_LONGER
        else ""
    )
