"""The sizes in a plan for SGLang: cards, share of memory, context, requests, tokens of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from caovand.core.config.schema import Config
from caovand.core.facts.inventory import Gpu, Inventory, ModelCard
from caovand.core.plan import Setting, Unplannable
from caovand.engines.common.options import count
from caovand.engines.common.speeds import all_linked, host_link
from caovand.engines.common.tensors import breaks_in_8_bits
from caovand.engines.common.usual_requests import USUAL_REQUESTS
from caovand.engines.sglang.memory.forecast import UNMODELLED_STATES, unmodelled
from caovand.engines.sglang.memory.load import AT_LOAD, SglangLoad, activation_bytes
from caovand.engines.sglang.memory.steps import MAX_GRAPH, usual_share, usual_step
from caovand.engines.sglang.planning import cards, loads
from caovand.engines.sglang.planning.loads import LoadChoice, SizingInput
from caovand.engines.sglang.planning.options import (
    CACHE_TYPE,
    CONTEXT,
    GRAPH_SIZES,
    MAX_GRAPH_OPTION,
    NO_PREFIXES,
    PARALLEL,
    QUANTIZATION,
    RANKS,
    REPLICAS,
    REQUESTS,
    SHARE,
    SLOTS,
    STEP,
    attention_groups,
    option,
)

REQUESTS_BY_WORKLOAD = {"chat": 16, "long": 4, "batch": 128}
"""Concurrent requests for each workload; further ones wait."""
MIN_REQUESTS = {"chat": 4, "long": 1, "batch": 16}
"""Concurrent requests that drafts must leave room for."""
CONTEXT_WORTH = 1.25
"""The factor by which a longer context is worth more than drafts."""
GRANULE, MIN_CONTEXT = 256, 2048


def settings(
    config: Config,
    inventory: Inventory,
    gpus: tuple[Gpu, ...],
    typed: Mapping[str, Any],
    drafts: Setting,
    *,
    old: bool,
) -> dict[str, Setting]:
    """The settings that divide memory."""
    policy, model = config.policy, inventory.model
    requests, kind = _requests(config, typed), _cache_type(config, typed, gpus)
    dtype = _dtype(config, typed, old=old)
    ranks = Setting(typed[RANKS], "user", "passed verbatim") if RANKS in typed else None
    ranks = ranks or cards.wanted_split(config, inventory, gpus)
    groups = attention_groups(typed.get)
    load = SglangLoad(
        context=config.model.max_model_len or model.max_model_len,
        requests=max(requests.value // groups, 1),
        step=0,
        share=0.0,
        depth=(drafts.value or {}).get("num_speculative_tokens", 0),
        cache_type=str(kind.value or "auto"),
        activation=activation_bytes(model, dtype.value),
        graphs=policy.cuda_graphs != "none",
        images=model.vision and not config.model.text_only,
        attention_groups=groups,
        rounded=typed.get(QUANTIZATION) == AT_LOAD,
        slots=count(typed.get(SLOTS)) or 0,
        prefixes=not typed.get(NO_PREFIXES),
    )
    inputs = SizingInput(config, model, gpus, typed, old)
    able = (ranks.value,) if ranks else cards.splits(model, gpus)
    tokens, gain, replicas = None, 0.0, 1
    if unmodelled(model):
        chosen = loads.of_sglang(inputs, replace(load, ranks=able[-1]))
    else:
        smaller = not old and kind.origin == "policy" and _stores_in_eight_bits(model, gpus)
        batch = policy.workload == "batch" and ranks is None and not PARALLEL & typed.keys()
        sized = loads.choose(
            inputs, load, able, smaller_cache=smaller, replicated=batch and _has_replicas(inventory)
        )
        replicas, gain = sized.replicas, sized.gain
        spelled = cards.in_groups(inventory, gpus, sized.load.ranks) if batch else {}
        if spelled and replicas == 1:
            sized = loads.in_groups(inputs, sized)
        if requests.origin == "policy":
            sized, requests = _as_many_as_fit(inputs, sized, requests)
        if model.hybrid and _may_end_prefixes(config, inventory, typed):
            sized, requests = _with_single_states(inputs, sized, requests)
        chosen, tokens = sized.load, sized.tokens
    if ranks is None:
        why = f"each of {replicas} replicas has room for a long context"
        if replicas == 1:
            why = _why_split(chosen.ranks, able[-1], gain, gpus)
        ranks = Setting(chosen.ranks, "policy", why)
    if ranks.origin == "policy":
        idle = _idle(model, gpus, chosen.ranks * replicas)
        ranks = replace(ranks, reason=ranks.reason + idle)
    if chosen.cache_type != load.cache_type:
        kept = "fewer requests" if policy.workload == "batch" else "a shorter context"
        why = f"a cache of the model's own type would hold {kept}"
        kind = Setting(chosen.cache_type, "policy", why)
    found = {
        CONTEXT: _context(config, inventory, typed, tokens),
        RANKS: ranks,
        SHARE: _share(config, model, chosen, gpus),
        REQUESTS: requests,
        STEP: _step(config, chosen, gpus),
        CACHE_TYPE: kind,
        "dtype": dtype,
    }
    if chosen.graphs and not GRAPH_SIZES & typed.keys():
        why = "the most requests at once: SGLang's own number would run larger steps without graphs"
        found[MAX_GRAPH_OPTION] = Setting(min(chosen.requests, MAX_GRAPH), "policy", why)
    if chosen.attention_groups > groups:
        found |= spelled
    if replicas > 1:
        why = "a batch: each replica serves its own requests, and waits for no other's cards"
        found[REPLICAS] = Setting(replicas, "policy", why)
    return found | _pools(chosen, typed)


def _pools(chosen: SglangLoad, typed: Mapping[str, Any]) -> dict[str, Setting]:
    """The options of recurrent states, prefixes and weights in which a load differs from SGLang's
    own."""
    found = {}
    if chosen.slots and SLOTS not in typed:
        why = "recurrent states, five for each request: SGLang's own number would cut the cache"
        found[SLOTS] = Setting(chosen.slots, "policy", why)
    if not (chosen.prefixes or NO_PREFIXES in typed):
        why = "a batch: for prefixes each request takes five recurrent states, without them one"
        found[NO_PREFIXES] = Setting(True, "policy", why)
    if chosen.rounded and QUANTIZATION not in typed:
        why = "16-bit weights leave too little room: SGLang quantises them once they are loaded"
        found[QUANTIZATION] = Setting(AT_LOAD, "policy", why)
    return found


def _has_replicas(inventory: Inventory) -> bool:
    """Whether this SGLang serves several replicas; assumed if its options were not probed."""
    flags = inventory.engine.flags
    return not flags or option(REPLICAS) in flags


def drafts_cost(
    config: Config,
    model: ModelCard,
    drafting: Mapping[str, Setting],
    plain: Mapping[str, Setting],
) -> str:
    """Describe what the memory of drafts costs, if that is worth more than drafts; "" if they may
    stay."""
    workload = config.policy.workload
    requests, more = drafting[REQUESTS].value, plain[REQUESTS].value
    if requests < min(MIN_REQUESTS[workload], more):
        return f"{requests} requests at once instead of {more}"
    context, longer = drafting[CONTEXT].value, plain[CONTEXT].value
    if context <= MIN_CONTEXT:
        return "no context"
    short = context < min(loads.SUFFICIENT_CONTEXT[workload], model.max_model_len)
    return (
        f"a context of {context} instead of {longer}"
        if short and longer > context * CONTEXT_WORTH
        else ""
    )


def _stores_in_eight_bits(model: ModelCard, gpus: tuple[Gpu, ...]) -> bool:
    """Whether the policy may choose an 8-bit cache: for plain attention whose kernels support it;
    next to recurrent layers if cards have fp8, as in SGLang's cookbook."""
    native = loads.eight_bits(gpus) == loads.NATIVE
    able = {"full_attention", "linear_attention"} if native else {"full_attention"}
    plain = set(model.layer_types) <= able and not model.latent
    return plain and not breaks_in_8_bits(model)


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
        return f"{ranks} cards: on fewer there is no room for weights and a long context"
    return (
        "the fewest cards with room for it: they are not linked by NVLink, and more would finish"
        f" hardly more requests over PCIe {generation}.0 x{lanes}"
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
    why = "of the memory free at the start; the rest is for activations and CUDA graphs"
    if chosen.share > usual_share(model, chosen, gpus):
        why += " of this model; SGLang's default would reserve more and shrink the cache"
    return Setting(chosen.share, "policy", why)


def _step(config: Config, chosen: SglangLoad, gpus: tuple[Gpu, ...]) -> Setting:
    if (stated := config.policy.max_num_batched_tokens) is not None:
        return Setting(stated, "user", "[policy] max_num_batched_tokens")  # divided by SGLang
    if chosen.attention_groups > 1:
        each, groups = chosen.step, chosen.attention_groups
        why = f"SGLang divides it: {each} tokens for the requests of each of {groups} cards"
        return Setting(each * groups, "policy", why)
    if chosen.step == usual_step(gpus):
        return Setting(chosen.step, "policy", "usual for cards of this size")
    why = "shorter than usual for such cards: activations would leave too little cache"
    return Setting(chosen.step, "policy", why)


def _as_many_as_fit(
    inputs: SizingInput, sized: LoadChoice, requests: Setting
) -> tuple[LoadChoice, Setting]:
    """As many usual requests as the caches hold, up to SGLang's largest graph; fewer than the
    workload's only if recurrent states allow no more."""
    workload, load = inputs.workload, sized.load
    if inputs.model.hybrid and 0 < sized.requests < requests.value:
        reason = "as many as have room for their recurrent states and usual prompts"
        return sized, Setting(sized.requests, "policy", reason)
    each = USUAL_REQUESTS[workload].cached_tokens
    groups = load.attention_groups
    many = min(sized.tokens // each, MAX_GRAPH)
    if many * groups <= requests.value:
        return sized, requests
    more = loads.sized_load(inputs, replace(load, requests=many), sized.share)
    if more.requests < many:
        return sized, requests
    fitting = more.tokens // each
    caches = "the cache holds" if groups == 1 else f"the caches of {groups} cards hold"
    reason = f"{caches} about {fitting * groups} requests of workload {workload}, of {each} tokens"
    if fitting > many:
        reason += f"; the largest CUDA graph has {MAX_GRAPH}"
    many = min(fitting, many)
    found = Setting(many * groups, "policy", reason)
    return replace(more, load=replace(more.load, requests=many)), found


def _may_end_prefixes(config: Config, inventory: Inventory, typed: Mapping[str, Any]) -> bool:
    """Whether requests may have a single recurrent state each: the operator's choice, or a batch
    without options of his about states."""
    flags = inventory.engine.flags
    if {SLOTS, *UNMODELLED_STATES} & typed.keys():
        return False
    if NO_PREFIXES in typed:
        return bool(typed[NO_PREFIXES])
    return config.policy.workload == "batch" and (not flags or option(NO_PREFIXES) in flags)


def _with_single_states(
    inputs: SizingInput, sized: LoadChoice, requests: Setting
) -> tuple[LoadChoice, Setting]:
    """The load without the radix cache, and its requests, if that finishes far more."""
    groups = sized.load.attention_groups
    stated = ceil(requests.value / groups) if requests.origin == "user" else None
    single = loads.without_prefixes(inputs, sized, stated)
    if single is sized or stated:
        return single, requests
    reason = "as many as have room for a recurrent state and a usual prompt"
    return single, Setting(single.load.requests * groups, "policy", reason)


def _context(
    config: Config, inventory: Inventory, typed: Mapping[str, Any], tokens: int | None
) -> Setting:
    limit, wanted = inventory.model.max_model_len, config.model.max_model_len
    if CONTEXT in typed:
        return Setting(typed[CONTEXT], "user", "passed verbatim")
    if wanted is not None:
        if limit and inventory.model.limit_known and wanted > limit:
            raise Unplannable(
                f"cannot serve a context of {wanted} tokens: the model's own limit is {limit}; set"
                " [model] max_model_len to at most that"
            )
        return Setting(wanted, "user", "[model] max_model_len")
    if tokens is None:
        return Setting(
            limit, "policy", "the model's own limit; what its cache holds is not modelled"
        )
    if tokens >= limit:
        return Setting(limit, "policy", "the model's own limit")
    if tokens < MIN_CONTEXT:
        return Setting(
            min(MIN_CONTEXT, limit), "policy", "no context fits; trying the smallest useful one"
        )
    return Setting(tokens // GRANULE * GRANULE, "policy", "the longest that fits the cache")


def _requests(config: Config, typed: Mapping[str, Any]) -> Setting:
    if REQUESTS in typed:
        return Setting(typed[REQUESTS], "user", "passed verbatim")
    if config.policy.max_num_seqs is not None:
        return Setting(config.policy.max_num_seqs, "user", "[policy] max_num_seqs")
    workload = config.policy.workload
    return Setting(
        REQUESTS_BY_WORKLOAD[workload], "policy", f"requests at once for workload {workload}"
    )


def _cache_type(config: Config, typed: Mapping[str, Any], gpus: tuple[Gpu, ...]) -> Setting:
    wanted = config.policy.kv_cache_dtype
    if CACHE_TYPE in typed:
        return Setting(typed[CACHE_TYPE], "user", "passed verbatim")
    if wanted == "fp8":
        kind = loads.eight_bits(gpus)
        return Setting(kind, "user", "[policy] kv_cache_dtype, in the format that these cards read")
    if wanted not in (None, "auto"):
        return Setting(wanted, "user", "[policy] kv_cache_dtype")
    return Setting("auto", "policy", "the model's own type loses nothing")


def _dtype(config: Config, typed: Mapping[str, Any], *, old: bool) -> Setting:
    if "dtype" in typed:
        return Setting(typed["dtype"], "user", "passed verbatim")
    if old and config.policy.dtype == "bfloat16":
        raise Unplannable(
            "cannot use [policy] dtype bfloat16: cards before compute capability 8.0 do not "
            "support it; set half"
        )
    if config.policy.dtype is not None:
        return Setting(config.policy.dtype, "user", "[policy] dtype")
    if old:
        return Setting(
            "half", "policy", "cards before compute capability 8.0 do not support bfloat16"
        )
    return Setting("auto", "policy", "the model's own type")
