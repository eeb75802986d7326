"""From a plan back to its load: what the engine will hold with exactly these settings.

The ladder changes plans, and the operator's flags are not the policy's, so the forecast is made
from what the plan says, with vLLM's own defaults where it says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from caovand.core.conflicts import conflicts
from caovand.core.devices import other_parallelism
from caovand.core.draft import TURING
from caovand.core.flags import whole_number
from caovand.core.inventory import Gpu, Inventory, device_name
from caovand.core.kv_cache import element_bytes
from caovand.core.memory import Load, MemoryEstimate, estimate, unforeseen
from caovand.core.plan import Plan

CPU_BLOCK = 128
CUDA_BLOCK = 16
LARGE_CARD_MIB = 70 * 1024
DEFAULT_SHARE = 0.9


def gpus_of(plan: Plan, inventory: Inventory) -> tuple[Gpu, ...]:
    """The cards the plan uses."""
    visible = plan.env.get("CUDA_VISIBLE_DEVICES")
    if visible is None or inventory.engine.build == "cpu":
        return inventory.gpus if inventory.engine.build == "cuda" else ()
    wanted = str(visible.value).split(",")
    return tuple(gpu for gpu in inventory.gpus if device_name(gpu) in wanted)


def aligned(mode: Any, prefix_caching: Any, version: tuple[int, ...]) -> bool:
    """Whether a hybrid model's states are kept at block borders, one more a request.

    They are with prefix caching, which releases after 0.21 turn on for hybrid models too.
    """
    if mode is not None:
        return bool(mode == "align")
    return bool(version >= (0, 22)) if prefix_caching is None else bool(prefix_caching)


def load_of(plan: Plan, inventory: Inventory) -> Load:
    """What this plan asks of memory."""
    model, gpus = inventory.model, gpus_of(plan, inventory)
    large = bool(gpus) and min(g.total_mib for g in gpus) >= LARGE_CARD_MIB
    large = large and not any("A100" in gpu.name for gpu in gpus)
    dtype = str(plan.value("dtype") or "auto")

    def count(name: str, default: int) -> int:
        number = whole_number(plan.value(name))
        return number if number and number > 0 else default

    share = plan.value("gpu_memory_utilization")
    given = plan.value("kv_cache_memory_bytes")
    offload = plan.value("cpu_offload_gb")
    compiled = plan.value("compilation_config")
    compiled = compiled if isinstance(compiled, Mapping) else {}
    graphs = str(compiled.get("cudagraph_mode")).upper()
    return Load(
        context=count("max_model_len", model.max_model_len),
        sequences=count("max_num_seqs", 1024 if large else 256),
        batch_tokens=count("max_num_batched_tokens", 8192 if large else 2048),
        utilization=float(share) if isinstance(share, (int, float)) else DEFAULT_SHARE,
        tensor_parallel=count("tensor_parallel_size", 1),
        mtp=plan.mtp,
        kv_dtype=str(plan.value("kv_cache_dtype") or "auto"),
        activation=element_bytes(model.dtype if dtype == "auto" else dtype),
        eager=bool(plan.value("enforce_eager")) or graphs == "NONE",
        aligned_states=aligned(
            plan.value("mamba_cache_mode"),
            plan.value("enable_prefix_caching"),
            inventory.engine.version,
        ),
        vision=model.vision and not plan.value("language_model_only"),
        turing=any(gpu.compute_capability == TURING for gpu in gpus),
        offload_gib=float(offload) if isinstance(offload, (int, float)) else 0.0,
        version=inventory.engine.version,
        kv_bytes=whole_number(given),
        alignment=CUDA_BLOCK if inventory.engine.build == "cuda" else CPU_BLOCK,
        compilation=compiled,
    )


def forecast(plan: Plan, inventory: Inventory) -> MemoryEstimate:
    """The forecast, with what would make the plan fit; of what is unknown, only the share."""
    gpus, share = gpus_of(plan, inventory), plan.value("gpu_memory_utilization")
    why = _unknown(plan, inventory, gpus)
    if why:
        found = unforeseen(share if isinstance(share, (int, float)) else None, gpus, why)
    else:
        found = estimate(inventory.model, load_of(plan, inventory), gpus)
    contradictions = conflicts(plan, inventory, gpus)
    if contradictions:
        found = replace(found, fits=False, conflicts=contradictions)
    return replace(found, advice=plan.advice) if found.fits is False else found


def _unknown(plan: Plan, inventory: Inventory, gpus: tuple[Gpu, ...]) -> str:
    """Why nothing can be forecast; empty where it can."""
    model = inventory.model
    if not model.architecture:
        return "the model is not on this machine yet"
    if not model.layer_types:
        return "config.json does not tell the model's layers"
    if other_parallelism({name: setting.value for name, setting in plan.settings.items()}):
        return "stages and replicas are not forecast"
    if not gpus and whole_number(plan.value("kv_cache_memory_bytes")) is None:
        return "the cache of a CPU build is as large as vLLM makes it"
    return ""
