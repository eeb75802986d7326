"""Kernels that vLLM would have FlashInfer compile at a start, by card, to build beforehand.

Read from vLLM 0.21 and FlashInfer 0.6.8:

- vllm/v1/sample/ops/topk_topp_sampler.py calls FlashInfer's sampler on every card for requests with
  top-k or top-p; flashinfer/sampling.py has all of it in one module.
- vllm/v1/attention/backends/flashinfer.py plans prefill and decode with one kind of module: it
  asks for tensor cores when decoding, and FlashInfer (decode.py) then takes batch_prefill there,
  too. Its batch_decode and page modules are never requested. Off SM90 that is the "fa2" backend
  (determine_attention_backend), with positions encoded by vLLM, no custom mask, and products summed
  in float32. Queries and outputs are of the model's type, also where the cache is fp8.
- vllm/platforms/cuda.py takes FlashInfer's attention after FLASH_ATTN, which reads an fp8 cache on
  SM90 alone (fa_utils.py); on SM10x FlashInfer comes first, with kernels of TensorRT-LLM that are
  ready. So from SM80 on, off these two, an fp8 cache, which a plan takes where it pays, is read by
  "fa2": batch_prefill with dtype_q and dtype_o bf16 and dtype_kv e4m3 in its name.
- vllm/model_executor/layers/mamba/gdn_linear_attn.py has FlashInfer's Gated DeltaNet on SM90.
- vllm/config/vllm.py fuses the all-reduce of tensor parallel with the norm after it on SM90 and
  SM10x, by FlashInfer's trtllm_comm: over two H100s a start was still compiling it after 100 s.

What a model needs besides (64-wide heads, sliding windows, soft caps, float16 queries to an fp8
cache from SM80 on) is compiled when it starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from caovand.core.engine.record import CompiledKernel
from caovand.core.facts.inventory import EngineInfo
from caovand.engines.vllm import releases
from caovand.engines.vllm.machine.capabilities import AMPERE, BLACKWELL, HOPPER, OWN_FP8, TURING

HEAD_DIMS = (128, 256)
HALF, BFLOAT, FP8 = "torch.float16", "torch.bfloat16", "torch.float8_e4m3fn"
ON_TURING = {"float16": (HALF, HALF), "fp8": (HALF, FP8)}
ON_AMPERE = {"bfloat16-fp8": (BFLOAT, FP8)}
"""Types of queries and of the cache, by the end of a kernel's label."""
COMPILER_MIB = 2048
"""Host memory of one compiler for these kernels: at most 0.9 GiB was measured."""
FOLDER, PLACE = "CAOVAN_FLASHINFER_KERNELS", "kernels"
"""The variable that points FlashInfer to the compiled kernels, and their folder in the engine."""

SAMPLING = CompiledKernel(
    label="sampling", generator="flashinfer.jit.sampling:gen_sampling_module", arguments={}
)
DELTA_NET = CompiledKernel(
    label="gated-delta-net",
    generator="flashinfer.jit.gdn:gen_gdn_prefill_sm90_module",
    arguments={},
)
ALL_REDUCE = CompiledKernel(
    label="all-reduce", generator="flashinfer.jit.comm:gen_trtllm_comm_module", arguments={}
)
"""Only tensor parallel needs it."""


def kernels(release: tuple[int, ...], capability: tuple[int, int]) -> tuple[CompiledKernel, ...]:
    """The kernels that this release needs on cards of this capability, quickest first."""
    if capability == TURING:
        return (SAMPLING, *_attention(ON_TURING))
    if capability >= AMPERE and capability[0] not in OWN_FP8:
        return (SAMPLING, *_attention(ON_AMPERE))
    if capability == HOPPER and release < releases.DELTA_NET_NOT_BY_NVCC:
        return (SAMPLING, DELTA_NET, ALL_REDUCE)
    if capability == HOPPER or capability[0] == BLACKWELL[0]:
        return (SAMPLING, ALL_REDUCE)
    return (SAMPLING,)


def _attention(kinds: Mapping[str, tuple[str, str]]) -> Iterator[CompiledKernel]:
    for head_dim in HEAD_DIMS:
        for name, (queries, cache) in kinds.items():
            yield CompiledKernel(
                label=f"attention-{head_dim}-{name}",
                generator="flashinfer.jit.attention:gen_batch_prefill_module",
                arguments={
                    "backend": "fa2",
                    "dtype_q": queries,
                    "dtype_kv": cache,
                    "dtype_o": queries,
                    "dtype_idx": "torch.int32",
                    "head_dim_qk": head_dim,
                    "head_dim_vo": head_dim,
                    "pos_encoding_mode": 0,
                    "use_sliding_window": False,
                    "use_logits_soft_cap": False,
                    "use_fp16_qk_reduction": False,
                },
            )


def compilers(cpus: int, memory_mib: int) -> int:
    """Compilers to run in parallel: one per core, as far as the host's memory allows."""
    return max(1, min(cpus, memory_mib // COMPILER_MIB))


def missing(engine: EngineInfo, capability: tuple[int, int], cards: int) -> tuple[str, ...]:
    """Labels of the kernels that a start of this engine on `cards` such cards may have to
    compile."""
    if engine.build != "cuda" or not engine.flashinfer or engine.jit_cache:
        return ()
    have = dict(engine.kernels).get("sm{}{}".format(*capability), ())
    wanted = kernels(engine.release, capability)
    needed = (kernel.label for kernel in wanted if kernel is not ALL_REDUCE or cards > 1)
    return tuple(label for label in needed if label not in have)
