"""Choose the load for SGLang: its cards, its cache, and its number of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from caovand.core.config.schema import Config
from caovand.core.facts.inventory import Gpu, Inventory, ModelCard
from caovand.core.plan import Setting, Unplannable
from caovand.engines.common.options import count
from caovand.engines.common.tensors import breaks_in_8_bits
from caovand.engines.sglang.memory.forecast import UNMODELLED_STATES, why_unmodelled
from caovand.engines.sglang.memory.load import AT_LOAD, SglangLoad, activation_bytes
from caovand.engines.sglang.memory.steps import MAX_GRAPH
from caovand.engines.sglang.options import (
    CACHE_TYPE,
    NO_PREFIXES,
    PARALLEL,
    QUANTIZATION,
    RANKS,
    REPLICAS,
    REQUESTS,
    SLOTS,
    attention_groups,
    option,
)
from caovand.engines.sglang.planning import cards, loads
from caovand.engines.sglang.planning.loads import LoadChoice, SizingInput
from caovand.engines.sglang.planning.workloads import WORKLOADS


@dataclass(frozen=True)
class DecidedSettings:
    """The settings that no memory decides; `ranks` is None if the number of cards is open."""

    requests: Setting
    cache_type: Setting
    dtype: Setting
    ranks: Setting | None


@dataclass(frozen=True)
class SizedLoad:
    """The chosen load, and the one that the comparison began with.

    `tokens` are those of its cache, None if that is not modelled. `gain` is the factor by which it
    finishes more requests a second than fewer cards, 0 if fewer have no room. `splits` are the
    numbers of cards that were compared, `grouped` the options of attention that each card has for
    itself.
    """

    begin: SglangLoad
    load: SglangLoad
    requests: Setting
    splits: Sequence[int]
    tokens: int | None = None
    replicas: int = 1
    gain: float = 0.0
    grouped: Mapping[str, Setting] = field(default_factory=dict)


def decide_settings(request: SizingInput, inventory: Inventory) -> DecidedSettings:
    """Decide the settings that precede the division of memory. Raises Unplannable."""
    config, typed, gpus = request.config, request.typed, request.gpus
    ranks = Setting(typed[RANKS], "user", "passed verbatim") if RANKS in typed else None
    return DecidedSettings(
        requests=_requests(config, typed),
        cache_type=_cache_type(config, typed, gpus),
        dtype=_dtype(config, typed, old=request.old),
        ranks=ranks or cards.stated_split(config, inventory, gpus),
    )


def choose_load(
    request: SizingInput, inventory: Inventory, known: DecidedSettings, depth: int
) -> SizedLoad:
    """The load that serves the workload best, drafting `depth` tokens."""
    config, model, gpus, typed = request.config, request.model, request.gpus, request.typed
    begin = _first_load(request, known, depth)
    splits = (known.ranks.value,) if known.ranks else cards.splits(model, gpus)
    if why_unmodelled(model):
        load = loads.default_load(request, replace(begin, ranks=splits[-1]))
        return SizedLoad(begin, load, known.requests, splits)
    by_policy = known.cache_type.origin == "policy"
    smaller = not request.old and by_policy and _stores_in_eight_bits(model, gpus)
    batch = request.workload.batch and known.ranks is None and not PARALLEL & typed.keys()
    choice = loads.choose(
        request, begin, splits, smaller_cache=smaller, replicated=batch and _has_replicas(inventory)
    )
    replicas, gain, requests = choice.replicas, choice.gain, known.requests
    grouped = cards.in_groups(inventory, gpus, choice.load.ranks) if batch else {}
    if grouped and replicas == 1:
        choice = loads.attend_in_groups(request, choice)
    if requests.origin == "policy":
        choice, requests = _as_many_as_fit(request, choice, requests)
    if model.hybrid and _may_end_prefixes(config, inventory, typed):
        choice, requests = _with_single_states(request, choice, requests)
    if choice.load.attention_groups == begin.attention_groups:
        grouped = {}
    return SizedLoad(begin, choice.load, requests, splits, choice.tokens, replicas, gain, grouped)


def _first_load(request: SizingInput, known: DecidedSettings, depth: int) -> SglangLoad:
    """The load that the settings so far describe, before it has cards, step and share."""
    config, model, typed = request.config, request.model, request.typed
    groups = attention_groups(typed.get)
    return SglangLoad(
        context=config.model.max_model_len or model.max_model_len,
        requests=max(known.requests.value // groups, 1),
        step=0,
        share=0.0,
        depth=depth,
        cache_type=str(known.cache_type.value or "auto"),
        activation=activation_bytes(model, known.dtype.value),
        graphs=config.policy.cuda_graphs != "none",
        images=model.vision and not config.model.text_only,
        attention_groups=groups,
        rounded=typed.get(QUANTIZATION) == AT_LOAD,
        slots=count(typed.get(SLOTS)) or 0,
        prefixes=not typed.get(NO_PREFIXES),
    )


def _has_replicas(inventory: Inventory) -> bool:
    """Whether this SGLang serves several replicas; assumed if its options were not probed."""
    flags = inventory.engine.flags
    return not flags or option(REPLICAS) in flags


def _stores_in_eight_bits(model: ModelCard, gpus: tuple[Gpu, ...]) -> bool:
    """Whether the policy may choose an 8-bit cache: for plain attention whose kernels support it;
    next to recurrent layers if cards have fp8, as in SGLang's cookbook."""
    native = loads.eight_bits(gpus) == loads.NATIVE
    able = {"full_attention", "linear_attention"} if native else {"full_attention"}
    plain = set(model.layer_types) <= able and not model.latent
    return plain and not breaks_in_8_bits(model)


def _as_many_as_fit(
    request: SizingInput, sized: LoadChoice, requests: Setting
) -> tuple[LoadChoice, Setting]:
    """As many usual requests as the caches hold, up to SGLang's largest graph; fewer than the
    workload's only if recurrent states allow no more."""
    workload, load = request.workload, sized.load
    if request.model.hybrid and 0 < sized.requests < requests.value:
        reason = "as many as fit with their recurrent states and usual prompts"
        return sized, Setting(sized.requests, "policy", reason)
    each = workload.cached_tokens
    groups = load.attention_groups
    many = min(sized.tokens // each, MAX_GRAPH)
    if many * groups <= requests.value:
        return sized, requests
    more = loads.sized_load(request, replace(load, requests=many), sized.share)
    if more.requests < many:
        return sized, requests
    fitting = more.tokens // each
    caches = "the cache holds" if groups == 1 else f"the caches of {groups} cards hold"
    reason = (
        f"{caches} about {fitting * groups} requests of workload {workload.name}, of {each} tokens"
    )
    if fitting > many:
        reason += f"; the largest CUDA graph has {MAX_GRAPH}"
    many = min(fitting, many)
    more = replace(more, load=replace(more.load, requests=many))
    return more, Setting(many * groups, "policy", reason)


def _may_end_prefixes(config: Config, inventory: Inventory, typed: Mapping[str, Any]) -> bool:
    """Whether requests may have a single recurrent state each: the operator's choice, or a batch
    without verbatim options about states."""
    flags = inventory.engine.flags
    if {SLOTS, *UNMODELLED_STATES} & typed.keys():
        return False
    if NO_PREFIXES in typed:
        return bool(typed[NO_PREFIXES])
    return config.policy.workload == "batch" and (not flags or option(NO_PREFIXES) in flags)


def _with_single_states(
    request: SizingInput, sized: LoadChoice, requests: Setting
) -> tuple[LoadChoice, Setting]:
    """The load without the radix cache, and its requests, if that finishes far more."""
    groups = sized.load.attention_groups
    stated = ceil(requests.value / groups) if requests.origin == "user" else None
    single = loads.drop_prefixes(request, sized, stated)
    if single is sized or stated:
        return single, requests
    reason = "as many as fit with a recurrent state and a usual prompt"
    return single, Setting(single.load.requests * groups, "policy", reason)


def _requests(config: Config, typed: Mapping[str, Any]) -> Setting:
    if REQUESTS in typed:
        return Setting(typed[REQUESTS], "user", "passed verbatim")
    if config.policy.max_num_seqs is not None:
        return Setting(config.policy.max_num_seqs, "user", "[policy] max_num_seqs")
    workload = WORKLOADS[config.policy.workload]
    reason = f"requests at once for workload {workload.name}"
    return Setting(workload.requests, "policy", reason)


def _cache_type(config: Config, typed: Mapping[str, Any], gpus: tuple[Gpu, ...]) -> Setting:
    stated = config.policy.kv_cache_dtype
    if CACHE_TYPE in typed:
        return Setting(typed[CACHE_TYPE], "user", "passed verbatim")
    if stated == "fp8":
        kind = loads.eight_bits(gpus)
        return Setting(
            kind, "user", "[policy] kv_cache_dtype, in the format that these cards support"
        )
    if stated not in (None, "auto"):
        return Setting(stated, "user", "[policy] kv_cache_dtype")
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
