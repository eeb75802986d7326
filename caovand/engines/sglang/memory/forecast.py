"""The forecast of a plan: what the fullest card will hold, and how long a request may be."""

from __future__ import annotations

from collections.abc import Iterator

from caovand.core.facts.forecast import MemoryEstimate, MemoryPart, unknown
from caovand.core.facts.inventory import Gpu, Inventory, ModelCard, device_name
from caovand.core.facts.occupancy import in_use
from caovand.core.plan import Plan
from caovand.core.units import MIB
from caovand.engines.common.options import count
from caovand.engines.sglang import options
from caovand.engines.sglang.memory.load import (
    AT_LOAD,
    SglangLoad,
    activation_bytes,
    token_bytes,
    weights_bytes,
)
from caovand.engines.sglang.memory.states import divide
from caovand.engines.sglang.memory.steps import (
    CONTEXT_MIB,
    measured_mib,
    of_the_host,
    steps_mib,
    usual_step,
)

UNMODELLED = (
    "cpu_offload_gb", "pp_size",
    "pipeline_parallel_size", "nnodes", "speculative_draft_model_path", "max_total_tokens",
    "enable_hierarchical_cache", "load_format", "swa_full_tokens_ratio",
    "disable_hybrid_swa_memory",
)  # fmt: skip
"""Options whose effect on memory is not modelled."""
UNMODELLED_STATES = (
    "mamba_full_memory_ratio", "mamba_ssm_dtype", "mamba_radix_cache_strategy",
    "mamba_scheduler_strategy",
)  # fmt: skip
"""Options that change how much memory recurrent states get."""
TOLERANCE_MIB = 64
"""A shortage that rounding explains."""
SHORTER = "a shorter [model] max_model_len needs less cache"
SMALLER = "a quantised checkpoint has smaller weights"


def gpus_of(plan: Plan, inventory: Inventory) -> tuple[Gpu, ...]:
    """The cards that the plan uses."""
    return tuple(gpu for gpu in inventory.gpus if device_name(gpu) in (plan.cards or ()))


def why_unmodelled(model: ModelCard) -> str:
    """Why nothing can be forecast for this model; "" if it can."""
    if not model.layer_types:
        return "config.json does not state the model's layers"
    if model.hybrid and not (model.linear or model.mamba):
        return "config.json does not state the shape of the model's recurrent states"
    return "" if model.weights else "the model's weights are not on this machine"


def load_of(plan: Plan, inventory: Inventory, gpus: tuple[Gpu, ...]) -> SglangLoad:
    """The load that this plan puts on memory."""
    share = plan.value(options.SHARE)
    groups = options.attention_groups(plan.value)
    return SglangLoad(
        context=count(plan.value(options.CONTEXT)) or inventory.model.max_model_len,
        requests=max((count(plan.value(options.REQUESTS)) or 48) // groups, 1),
        step=(count(plan.value(options.STEP)) or usual_step(gpus)) // groups,
        share=float(share) if isinstance(share, (int, float)) else 0.0,
        ranks=count(plan.value(options.RANKS)) or 1,
        attention_groups=groups,
        depth=plan.mtp,
        cache_type=str(plan.value(options.CACHE_TYPE) or "auto"),
        activation=activation_bytes(inventory.model, plan.value("dtype")),
        graphs=plan.value(options.DECODE_GRAPHS) != options.GRAPHS_OFF,
        images=inventory.model.vision and not plan.value(options.TEXT_ONLY),
        rounded=plan.value(options.QUANTIZATION) == AT_LOAD,
        slots=count(plan.value(options.SLOTS)) or 0,
        prefixes=not plan.value(options.NO_PREFIXES),
    )


def forecast(plan: Plan, inventory: Inventory) -> MemoryEstimate:
    """The forecast for the fullest card."""
    gpus, model = gpus_of(plan, inventory), inventory.model
    reason = why_unmodelled(model) or ("" if gpus else "no card is planned")
    flags = (*UNMODELLED, *UNMODELLED_STATES) if model.hybrid else UNMODELLED
    flag = next((name for name in flags if plan.value(name) is not None), None)
    if flag is None and plan.value(options.QUANTIZATION) not in (None, AT_LOAD):
        flag = options.QUANTIZATION
    if flag:
        reason = f"the effect of {options.option(flag)} is not modelled"
    if reason:
        return unknown(reason)
    return estimate(model, load_of(plan, inventory, gpus), gpus)


def estimate(model: ModelCard, load: SglangLoad, gpus: tuple[Gpu, ...]) -> MemoryEstimate:
    """The memory of this load on these cards."""
    weights = weights_bytes(model, load)
    pools = divide(model, load, cache_room(model, load, gpus))
    tokens = max(int(pools.cache // token_bytes(model, load)), 0) if pools.requests else 0
    states_mib, cache_mib = (max(size, 0) / MIB for size in (pools.states, pools.cache))
    total_mib = min(gpu.total_mib for gpu in gpus)
    others_mib, steps = max(map(in_use, gpus)), CONTEXT_MIB + steps_mib(model, load, gpus)
    used_mib = weights / MIB + states_mib + cache_mib + others_mib
    left_mib = max(total_mib - used_mib - max(map(of_the_host, gpus)), 0.0)
    lack = _lack(model, load, gpus, tokens, steps - left_mib)
    return MemoryEstimate(
        fits=not lack,
        gpu_memory_utilization=load.share,
        weights_mib=weights / MIB,
        kv_mib=pools.cache / MIB,
        needed_mib=load.context * token_bytes(model, load) / MIB,
        kv_tokens=tokens,
        max_model_len=min(tokens, model.max_model_len or tokens),
        concurrency=tokens / load.context if load.context else 0.0,
        reserve_mib=steps,
        parts=tuple(_parts(weights / MIB, states_mib, cache_mib, others_mib, steps, total_mib)),
        advice=_advice(lack, tokens),
        lack=lack,
    )


def served_at_once(plan: Plan, inventory: Inventory) -> int | None:
    """The requests that each engine serves at once, if recurrent states allow fewer than
    planned."""
    model, gpus = inventory.model, gpus_of(plan, inventory)
    load = load_of(plan, inventory, gpus)
    allowed = divide(model, load, cache_room(model, load, gpus)).requests
    return allowed * load.attention_groups if allowed < load.requests else None


def cache_room(model: ModelCard, load: SglangLoad, gpus: tuple[Gpu, ...]) -> float:
    """Bytes that the share leaves for states and cache on the card with the least free memory."""
    return measured_mib(gpus) * load.share * MIB - weights_bytes(model, load)


def _parts(
    weights: float, states: float, cache: float, others: float, steps: float, total: float
) -> Iterator[tuple[MemoryPart, float]]:
    """The parts of a card in MiB, which add up to the card if all of them fit."""
    yield "weights", weights
    if states:
        yield "states", states
    yield "kv", cache
    yield "others", others
    left = max(total - weights - states - cache - others, 0.0)
    yield "steps", min(left, steps)
    yield "free", max(left - steps, 0.0)


def _advice(lack: str, tokens: int) -> tuple[str, ...]:
    if not lack:
        return ()
    return (SHORTER, SMALLER) if tokens else (SMALLER,)


def _lack(
    model: ModelCard, load: SglangLoad, gpus: tuple[Gpu, ...], tokens: int, missing_mib: float
) -> str:
    """The memory that is short; "" if everything fits."""
    free_gib, gib = measured_mib(gpus) / 1024, weights_bytes(model, load) / 2**30
    share = f"a share of {load.share:g} of {free_gib:.2f} GiB"
    if gib * 1024 > measured_mib(gpus) * load.share:
        return f"{gib:.2f} GiB of weights exceed {share}"
    if not tokens:
        what = "recurrent states and a cache" if model.hybrid else "a cache"
        return f"{gib:.2f} GiB of weights leave no room for {what} in {share}"
    if tokens < load.context:
        return f"the cache holds {tokens} tokens, fewer than the context of {load.context}"
    if missing_mib > TOLERANCE_MIB:
        return f"{share} leaves {missing_mib / 1024:.2f} GiB too little for the engine's steps"
    return ""
