"""The ladder's rungs: each makes one change that leads to a more modest plan.

A rung is pure: it takes a plan and a finding, and returns a Step, or None if it has no step left.
All steps go in one direction, so every rung runs out of steps, and so does the ladder.
"""

from __future__ import annotations

from caovand.core.healing.rung import Rung
from caovand.engines.vllm.flags.spelling import (
    DRAFTER,
    LM_HEAD,
    MARLIN_INPUT,
    PLUGINS,
    SPECULATION,
)
from caovand.engines.vllm.healing import sizes, switches
from caovand.engines.vllm.planning.environment import ATTENTION, THREADS

_CONFIG = ("compilation_config",)
_SIZES = (*_CONFIG, "max_cudagraph_capture_size", "cudagraph_capture_sizes")
# If the cache's size is set, the share has no effect.
_GMU = ("gpu_memory_utilization", "kv_cache_memory_bytes")
_REPLICAS = ("data_parallel_size", "tensor_parallel_size", "enable_expert_parallel")
RUNGS: tuple[Rung, ...] = (
    Rung("context", "shorten the context", "max_model_len", ("max_model_len",), sizes.context),
    Rung("mtp", "draft one token fewer", "mtp", SPECULATION, sizes.mtp_less),
    Rung("mtp-even", "draft as many tokens at any number of requests", "mtp", SPECULATION,
         sizes.mtp_even),
    Rung("mtp-safe", "draft at most 3 tokens", "mtp", SPECULATION, sizes.mtp_safe),
    Rung("mtp-off", "draft nothing", "mtp", SPECULATION, sizes.mtp_off),
    Rung("gmu-up", "use more of the card's memory", "gpu_memory_utilization",
         _GMU, sizes.gmu_up),
    Rung("gmu-down", "leave more of the card's memory free", "gpu_memory_utilization",
         _GMU, sizes.gmu_down),
    Rung("share", "use only memory that other programs leave free", "gpu_memory_utilization",
         _GMU, sizes.share, passing=True),
    Rung("kv-memory", "keep a larger KV cache on a machine without a card", "",
         ("kv_cache_memory_bytes",), sizes.larger_kv_memory),
    Rung("kv-memory-less", "keep a smaller KV cache in host memory", "",
         ("kv_cache_memory_bytes",), sizes.smaller_kv_memory),
    Rung("batch", "process less per step", "max_num_batched_tokens", ("max_num_batched_tokens",),
         sizes.batch),
    Rung("sequences", "decode fewer sequences at once", "max_num_seqs", ("max_num_seqs",),
         sizes.sequences),
    Rung("limit", "respect the limit that the engine names", "", sizes.LIMIT_KEYS, sizes.limit),
    Rung("graph-sizes", "capture fewer CUDA graphs", "cuda_graphs", _SIZES, sizes.fewer_graphs),
    Rung("piecewise", "keep attention out of CUDA graphs", "cuda_graphs", _CONFIG,
         switches.piecewise),
    Rung("eager", "run without CUDA graphs and compilation", "cuda_graphs",
         ("enforce_eager", "compilation_config"), switches.eager),
    Rung("kv-dtype", "store the KV cache in 8 bits", "kv_cache_dtype", ("kv_cache_dtype",),
         switches.kv_dtype_small),
    Rung("kv-dtype-plain", "store the KV cache in more bits", "kv_cache_dtype",
         ("kv_cache_dtype",), switches.kv_dtype_plain),
    Rung("half", "compute in float16", "dtype", ("dtype",), switches.half),
    Rung("half-input", "multiply weights by half-precision activations", "activations",
         (MARLIN_INPUT,), switches.half_input),
    Rung("half-drafter", "keep the MTP layer in 16 bits", "", (DRAFTER,), switches.half_drafter),
    Rung("half-head", "keep the lm_head in 16 bits", "lm_head", (LM_HEAD, DRAFTER),
         switches.half_head),
    Rung("attention", "use another attention backend", "",
         ("attention_backend", "attention_config"), switches.attention),
    Rung("experts", "compute experts without FlashInfer", "", switches.EXPERTS, switches.experts),
    Rung("gdn", "use another GDN backend", "", ("additional_config",), switches.gdn),
    Rung("attention-own", "decode with vLLM's own attention kernels", "", (ATTENTION,),
         switches.attention_own),
    Rung("plugin-off", "run without caovan's kernels", "plugin", (PLUGINS,), switches.plugin_off),
    Rung("prefix-caching-off", "do not cache prompts", "", ("enable_prefix_caching",),
         switches.prefix_caching_off),
    Rung("fresh-cache", "compile into a new cache", "", ("CAOVAN_CACHE",),
         switches.variable("CAOVAN_CACHE", "2", "a new compile cache"), degrades=False),
    Rung("no-compile-cache", "compile at every start", "", ("VLLM_DISABLE_COMPILE_CACHE",),
         switches.variable("VLLM_DISABLE_COMPILE_CACHE", "1", "compile cache off")),
    Rung("p2p-off", "move data between cards through the host", "", ("NCCL_P2P_DISABLE",),
         switches.variable("NCCL_P2P_DISABLE", "1", "NCCL peer-to-peer off", between_cards=True)),
    Rung("all-reduce-off", "leave all-reduce to NCCL", "",
         ("disable_custom_all_reduce",), switches.all_reduce_off),
    Rung("replicas-off", "serve with one engine instead of replicas", "", _REPLICAS,
         switches.replicas_off),
    Rung("sampler-plain", "sample without FlashInfer", "", ("VLLM_USE_FLASHINFER_SAMPLER",),
         switches.variable("VLLM_USE_FLASHINFER_SAMPLER", "0", "FlashInfer's sampler off")),
    Rung("jobs", "run fewer compilers at once", "", ("MAX_JOBS",), sizes.fewer_jobs,
         degrades=False),
    Rung("compile-threads", "compile with one thread", "", (THREADS,), sizes.one_thread,
         degrades=False),
    Rung("offload", "keep part of the weights in host memory", "", ("cpu_offload_gb",),
         sizes.offload),
)  # fmt: skip
