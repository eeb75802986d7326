"""From a plan back to its load: what the engine will hold with exactly these settings.

The ladder changes plans, and the operator's flags are not the policy's, so the forecast is made
from what the plan says, with vLLM's own defaults where it says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from caovand.core import graphs, releases
from caovand.core.conflicts import conflicts
from caovand.core.devices import stages
from caovand.core.draft import TURING
from caovand.core.flags import count as count_of
from caovand.core.flags import is_left_to_vllm, whole_number
from caovand.core.inventory import Gpu, Inventory, device_name
from caovand.core.kv_cache import element_bytes
from caovand.core.memory import GIB, Load, MemoryEstimate, estimate, unforeseen
from caovand.core.plan import Plan
from caovand.core.unmodelled import unmodelled

CPU_BLOCK = 128
CPU_CACHE_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"
CUDA_BLOCK = 16
LARGE_CARD_MIB = 70 * 1024
DEFAULT_SHARE = 0.9


def gpus_of(plan: Plan, inventory: Inventory) -> tuple[Gpu, ...]:
    """The cards the plan uses."""
    visible = plan.env.get("CUDA_VISIBLE_DEVICES")
    if visible is None or inventory.engine.build == "cpu":
        return inventory.gpus if inventory.engine.build == "cuda" else ()
    wanted = [name.strip() for name in str(visible.value).split(",")]
    return tuple(
        gpu
        for gpu in inventory.gpus
        if device_name(gpu) in wanted or any(name and gpu.uuid.startswith(name) for name in wanted)
    )


def aligned(mode: Any, prefix_caching: Any, version: tuple[int, ...]) -> bool:
    """Whether a hybrid model's states are kept at block borders, one more a request.

    They are with prefix caching, which releases after 0.21 turn on for hybrid models too.
    """
    if mode is not None:
        return bool(mode == "align")
    if prefix_caching is None:
        return version >= releases.PREFIX_CACHING_ALIGNS
    return bool(prefix_caching)


def load_of(plan: Plan, inventory: Inventory) -> Load:
    """What this plan asks of memory."""
    model, gpus = inventory.model, gpus_of(plan, inventory)
    large = bool(gpus) and min(g.total_mib for g in gpus) >= LARGE_CARD_MIB
    large = large and not any("A100" in gpu.name for gpu in gpus)
    dtype = str(plan.value("dtype") or "auto")

    def count(name: str, default: int) -> int:
        return count_of(plan.value(name)) or default

    share = plan.value("gpu_memory_utilization")
    offload = plan.value("cpu_offload_gb")
    compiled = plan.value("compilation_config")
    compiled = compiled if isinstance(compiled, Mapping) else {}
    level = plan.value("optimization_level")
    captured, compiles = graphs.mode(compiled, level), graphs.compiles(compiled, level)
    return Load(
        context=count("max_model_len", model.max_model_len),
        sequences=count("max_num_seqs", 1024 if large else 256),
        batch_tokens=count("max_num_batched_tokens", 8192 if large else 2048),
        utilization=float(share) if isinstance(share, (int, float)) else DEFAULT_SHARE,
        tensor_parallel=count("tensor_parallel_size", 1),
        mtp=plan.mtp,
        kv_dtype=str(plan.value("kv_cache_dtype") or "auto"),
        activation=element_bytes(model.dtype if dtype == "auto" else dtype),
        eager=bool(plan.value("enforce_eager")) or not compiles,
        aligned_states=aligned(
            plan.value("mamba_cache_mode"),
            plan.value("enable_prefix_caching"),
            inventory.engine.version,
        ),
        vision=model.vision and not plan.value("language_model_only"),
        turing=any(gpu.compute_capability == TURING for gpu in gpus),
        offload_gib=float(offload) if isinstance(offload, (int, float)) else 0.0,
        version=inventory.engine.version,
        kv_bytes=_kv_bytes(plan, inventory.engine.build),
        alignment=count(
            "block_size", CUDA_BLOCK if inventory.engine.build == "cuda" else CPU_BLOCK
        ),
        compilation={**compiled, "cudagraph_mode": captured},
        quantization=str(plan.value("quantization") or ""),
        kv_blocks=whole_number(plan.value("num_gpu_blocks_override")),
        state_dtype=str(plan.value("mamba_ssm_cache_dtype") or "auto"),
    )


def _kv_bytes(plan: Plan, build: str) -> int | None:
    """The cache's size where it is set; on the CPU build an older variable, in GiB, wins."""
    space = plan.env.get(CPU_CACHE_VARIABLE)
    if build == "cpu" and space is not None and str(space.value).isdecimal():
        return int(space.value) * GIB
    return whole_number(plan.value("kv_cache_memory_bytes"))


def _in_ram(found: MemoryEstimate, available_mib: int) -> MemoryEstimate:
    """The forecast of a CPU build: weights and cache share the memory that is free now."""
    short_mib = found.weights_mib + found.kv_mib - available_mib
    if short_mib <= 0:
        return found
    lack = (
        f"{found.weights_mib / 1024:.2f} GiB of weights and {found.kv_mib / 1024:.2f} GiB of cache"
        f" take more than the {available_mib / 1024:.2f} GiB of RAM that are available"
    )
    advice = [f"stop what else uses memory: {ceil(short_mib)} MiB more are needed"]
    least_mib = ceil(found.needed_mib)
    if found.weights_mib + least_mib <= available_mib:
        advice.append(f"--kv-cache-memory-bytes {least_mib << 20} holds one whole request")
    elif found.weights_mib < available_mib:
        advice.append("a shorter max_model_len needs less cache")
    else:
        advice.append("a smaller or quantised checkpoint needs less")
    return replace(found, fits=False, lack=lack, advice=tuple(advice))


def forecast(plan: Plan, inventory: Inventory) -> MemoryEstimate:
    """The forecast, with what would make the plan fit; of what is unknown, only the share."""
    gpus = gpus_of(plan, inventory)
    found = _forecast(plan, inventory, gpus)
    contradictions = conflicts(plan, inventory, gpus)
    if contradictions:
        found = replace(found, fits=False, conflicts=contradictions)
    if found.fits is not False:
        return found
    return replace(found, advice=found.advice or plan.advice)


def _forecast(plan: Plan, inventory: Inventory, gpus: tuple[Gpu, ...]) -> MemoryEstimate:
    model, share = inventory.model, plan.value("gpu_memory_utilization")
    why = _unknown(plan, inventory, gpus)
    if why:
        return unforeseen(share if isinstance(share, (int, float)) else None, gpus, why)
    load = load_of(plan, inventory)
    if not model.limit_known:  # what was asked for is all that is known
        model = replace(model, max_model_len=load.context)
    found = estimate(model, load, gpus)
    if is_left_to_vllm(plan.value("max_model_len")) and found.max_model_len:
        load = replace(load, context=found.max_model_len)  # vLLM takes the longest that fits
        found = estimate(model, load, gpus)
    return found if gpus else _in_ram(found, inventory.host.available_mib)


def _unknown(plan: Plan, inventory: Inventory, gpus: tuple[Gpu, ...]) -> str:
    """Why nothing can be forecast; empty where it can."""
    model = inventory.model
    if not model.architecture:
        return "the model is not on this machine yet"
    if not model.layer_types:
        return "config.json does not tell the model's layers"
    if not model.limit_known and count_of(plan.value("max_model_len")) is None:
        return "config.json does not tell the longest context; set max_model_len to have a forecast"
    settings = {name: setting.value for name, setting in plan.settings.items()}
    why = unmodelled(settings, model)
    if why:
        return why
    if not gpus and stages(settings) > 1:
        return "replicas of a CPU build share the machine's memory, which is not forecast"
    if not gpus and inventory.engine.build == "cuda":
        return "CUDA_VISIBLE_DEVICES of [engine] env names no card that is visible"
    if not gpus and _kv_bytes(plan, inventory.engine.build) is None:
        return "the cache of a CPU build is as large as vLLM makes it"
    return ""
