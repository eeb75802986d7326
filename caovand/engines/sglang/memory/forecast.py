"""The forecast of a plan: what the fullest card will hold, and how long a request may be."""

from __future__ import annotations

from caovand.core.facts.forecast import MemoryEstimate, unknown
from caovand.core.facts.inventory import Gpu, Inventory, ModelCard, device_name
from caovand.core.facts.occupancy import in_use
from caovand.core.plan import Plan
from caovand.engines.common.options import count
from caovand.engines.sglang.memory.load import (
    MIB,
    Load,
    activation_bytes,
    cache_bytes,
    reserve_mib,
    token_bytes,
    usual_step,
    weights_bytes,
)
from caovand.engines.sglang.planning import options

UNMODELLED = (
    "cpu_offload_gb", "quantization", "dp_size", "data_parallel_size", "pp_size",
    "pipeline_parallel_size", "nnodes", "speculative_draft_model_path", "max_total_tokens",
    "enable_dp_attention", "enable_hierarchical_cache", "load_format",
)  # fmt: skip
"""Options whose effect on memory is not modelled."""
ADVICE = (
    "a shorter [model] max_model_len needs less cache",
    "a quantised checkpoint has smaller weights",
)


def gpus_of(plan: Plan, inventory: Inventory) -> tuple[Gpu, ...]:
    """The cards that the plan uses."""
    return tuple(gpu for gpu in inventory.gpus if device_name(gpu) in (plan.cards or ()))


def unmodelled(model: ModelCard) -> str:
    """Why nothing of this model can be forecast; "" if it can."""
    if not model.layer_types:
        return "config.json does not tell the model's layers"
    if model.hybrid:
        return "SGLang divides the cache of models with recurrent states by a rule not modelled"
    return "" if model.weights else "the model's weights are not on this machine"


def load_of(plan: Plan, inventory: Inventory, gpus: tuple[Gpu, ...]) -> Load:
    """The load that this plan puts on memory."""
    share = plan.value(options.SHARE)
    ranks = count(plan.value(options.RANKS)) or 1
    return Load(
        context=count(plan.value(options.CONTEXT)) or inventory.model.max_model_len,
        requests=count(plan.value(options.REQUESTS)) or 48,
        step=count(plan.value(options.STEP)) or usual_step(gpus, ranks)[0],
        share=float(share) if isinstance(share, (int, float)) else 0.0,
        ranks=ranks,
        depth=plan.mtp,
        cache_type=str(plan.value(options.CACHE_TYPE) or "auto"),
        activation=activation_bytes(inventory.model, plan.value("dtype")),
        graphs=plan.value(options.DECODE_GRAPHS) != options.GRAPHS_OFF,
    )


def forecast(plan: Plan, inventory: Inventory) -> MemoryEstimate:
    """The forecast for the fullest card."""
    gpus, model = gpus_of(plan, inventory), inventory.model
    why = unmodelled(model) or ("" if gpus else "no card is planned")
    flag = next((name for name in UNMODELLED if plan.value(name) is not None), None)
    if flag:
        why = f"the effect of {options.option(flag)} is not modelled"
    if why:
        return unknown(why)
    return estimate(model, load_of(plan, inventory, gpus), gpus)


def estimate(model: ModelCard, load: Load, gpus: tuple[Gpu, ...]) -> MemoryEstimate:
    """The memory of this load on these cards."""
    weights, room = weights_bytes(model, load), cache_bytes(model, load, gpus)
    tokens = max(int(room // token_bytes(model, load)), 0)
    total_mib = min(gpu.total_mib for gpu in gpus)
    others_mib = max(map(in_use, gpus))
    outside_mib = reserve_mib(load, gpus)
    used_mib = weights / MIB + max(room, 0) / MIB + others_mib
    left_mib = max(total_mib - used_mib, 0.0)
    fits = tokens >= load.context
    lack = "" if fits else _lack(weights / MIB, tokens, load, gpus)
    return MemoryEstimate(
        fits=fits,
        gpu_memory_utilization=load.share,
        weights_mib=weights / MIB,
        kv_mib=room / MIB,
        needed_mib=load.context * token_bytes(model, load) / MIB,
        kv_tokens=tokens,
        max_model_len=min(tokens, model.max_model_len or tokens),
        concurrency=tokens / load.context if load.context else 0.0,
        reserve_mib=outside_mib,
        parts=(
            ("weights", weights / MIB),
            ("kv", max(room, 0) / MIB),
            ("others", others_mib),
            ("steps", min(left_mib, outside_mib)),
            ("free", max(left_mib - outside_mib, 0.0)),
        ),
        advice=() if fits else ADVICE,
        lack=lack,
    )


def _lack(weights_mib: float, tokens: int, load: Load, gpus: tuple[Gpu, ...]) -> str:
    if not tokens:
        free = min(gpu.free_mib for gpu in gpus)
        return (
            f"{weights_mib / 1024:.2f} GiB of weights leave no room for a cache in a share of"
            f" {load.share:g} of {free / 1024:.2f} GiB"
        )
    return f"the cache holds {tokens} tokens, fewer than the context of {load.context}"
