"""From settings to a load: what an engine holds in memory with exactly these settings.

Sizing asks before all settings are decided, the forecast afterwards: of plans that the ladder
changed, and with flags that are not the policy's. Both read them here, with vLLM's own defaults
where nothing is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caovand.core.facts.inventory import Gpu, Inventory
from caovand.engines.common.tensors import element_bytes
from caovand.engines.vllm import releases
from caovand.engines.vllm.capabilities import HOPPER, TURING
from caovand.engines.vllm.memory import graphs
from caovand.engines.vllm.memory.estimate import GIB, Load
from caovand.engines.vllm.memory.stages import PARTITION, partition
from caovand.engines.vllm.planning.activations import INT8, VARIABLE
from caovand.engines.vllm.planning.eight_bits import attended_by_flashinfer
from caovand.engines.vllm.planning.spelling import count as count_of
from caovand.engines.vllm.planning.spelling import whole_number

CPU_BLOCK, CUDA_BLOCK = 128, 16
CPU_CACHE_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"
LARGE_CARD_MIB = 70 * 1024
DEFAULT_SHARE = 0.9


def aligned(mode: Any, prefix_caching: Any, version: tuple[int, ...]) -> bool:
    """Whether a hybrid model's states are kept at block borders, one more a request.

    They are with prefix caching, which releases after 0.21 turn on for hybrid models too.
    """
    if mode is not None:
        return bool(mode == "align")
    if prefix_caching is None:
        return version >= releases.PREFIX_CACHING_ALIGNS
    return bool(prefix_caching)


def load_of(
    values: Mapping[str, Any], inventory: Inventory, gpus: tuple[Gpu, ...], env: Mapping[str, Any]
) -> Load:
    """What these settings and this environment ask of memory on these cards."""
    model, engine = inventory.model, inventory.engine
    large = bool(gpus) and min(g.total_mib for g in gpus) >= LARGE_CARD_MIB
    large = large and not any("A100" in gpu.name for gpu in gpus)
    dtype = str(values.get("dtype") or "auto")

    def count(name: str, default: int) -> int:
        return count_of(values.get(name)) or default

    share = values.get("gpu_memory_utilization")
    offload = values.get("cpu_offload_gb")
    compiled = values.get("compilation_config")
    compiled = compiled if isinstance(compiled, Mapping) else {}
    level = values.get("optimization_level")
    captured, compiles = graphs.mode(compiled, level), graphs.compiles(compiled, level)
    return Load(
        context=count("max_model_len", model.max_model_len),
        sequences=count("max_num_seqs", 1024 if large else 256),
        batch_tokens=count("max_num_batched_tokens", 8192 if large else 2048),
        utilization=float(share) if isinstance(share, (int, float)) else DEFAULT_SHARE,
        tensor_parallel=count("tensor_parallel_size", 1),
        mtp=_depth(values.get("speculative_config")),
        kv_dtype=str(values.get("kv_cache_dtype") or "auto"),
        activation=element_bytes(model.dtype if dtype == "auto" else dtype),
        eager=bool(values.get("enforce_eager")) or not compiles,
        aligned_states=aligned(
            values.get("mamba_cache_mode"), values.get("enable_prefix_caching"), engine.release
        ),
        vision=model.vision and not values.get("language_model_only"),
        turing=any(gpu.compute_capability == TURING for gpu in gpus),
        hopper=bool(gpus) and all(gpu.compute_capability == HOPPER for gpu in gpus),
        flashinfer=attended_by_flashinfer(values, inventory, gpus),
        offload_gib=float(offload) if isinstance(offload, (int, float)) else 0.0,
        version=engine.release,
        kv_bytes=kv_bytes(values, env, engine.build),
        alignment=count("block_size", CUDA_BLOCK if engine.build == "cuda" else CPU_BLOCK),
        compilation={**compiled, "cudagraph_mode": captured},
        quantization=str(values.get("quantization") or ""),
        kv_blocks=whole_number(values.get("num_gpu_blocks_override")),
        rounds_input=env.get(VARIABLE) == INT8,
        state_dtype=str(values.get("mamba_ssm_cache_dtype") or "auto"),
        stages=dealt(values, env, len(model.layer_types)),
    )


def dealt(values: Mapping[str, Any], env: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """The layers of each pipeline stage; empty without stages, and where vLLM refuses them."""
    count = count_of(values.get("pipeline_parallel_size")) or 1
    return partition(env.get(PARTITION), layers, count) if count > 1 else ()


def kv_bytes(values: Mapping[str, Any], env: Mapping[str, Any], build: str) -> int | None:
    """The cache's size where it is set; on the CPU build an older variable, in GiB, wins."""
    space = str(env.get(CPU_CACHE_VARIABLE))
    if build == "cpu" and space.isdecimal():
        return int(space) * GIB
    return whole_number(values.get("kv_cache_memory_bytes"))


def _depth(config: Any) -> int:
    depth = whole_number(config.get("num_speculative_tokens")) if isinstance(config, Mapping) else 0
    return max(depth or 0, 0)
