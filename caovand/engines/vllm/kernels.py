"""Kernels that vLLM would have FlashInfer compile at a start, by card: what is built beforehand.

Read from vLLM 0.21 and FlashInfer 0.6.8:

- vllm/v1/sample/ops/topk_topp_sampler.py calls FlashInfer's sampler on every card for requests with
  top-k or top-p; flashinfer/sampling.py has all of it in one module.
- vllm/v1/attention/backends/flashinfer.py plans prefill and decode with one kind of module: it
  asks for tensor cores when decoding, and FlashInfer (decode.py) then takes batch_prefill there,
  too. Its batch_decode and page modules are never asked for. Before SM90 that is the "fa2" backend,
  with positions encoded by vLLM, no custom mask, and products summed in float32.
- vllm/model_executor/layers/mamba/gdn_linear_attn.py has FlashInfer's Gated DeltaNet on SM90.

What a model needs besides (64-wide heads, sliding windows, soft caps) is compiled when it starts.
"""

from __future__ import annotations

from caovand.core.engine import Kernel
from caovand.core.facts.inventory import EngineInfo
from caovand.engines.vllm import releases
from caovand.engines.vllm.capabilities import HOPPER, TURING

HEAD_DIMS = (128, 256)
CACHES = {"float16": "torch.float16", "fp8": "torch.float8_e4m3fn"}
COMPILER_MIB = 2048
"""Host memory of one compiler of these kernels: the most that was measured is 0.9 GiB."""
FOLDER, PLACE = "CAOVAN_FLASHINFER_KERNELS", "kernels"
"""The variable that leads FlashInfer to what is built, and the folder in the engine with it."""

SAMPLING = Kernel(
    label="sampling", generator="flashinfer.jit.sampling:gen_sampling_module", arguments={}
)
DELTA_NET = Kernel(
    label="gated-delta-net",
    generator="flashinfer.jit.gdn:gen_gdn_prefill_sm90_module",
    arguments={},
)


def kernels(release: tuple[int, ...], capability: tuple[int, int]) -> tuple[Kernel, ...]:
    """What this release needs on cards of this capability, quickest first."""
    if capability == TURING:
        return (SAMPLING, *(_attention(dim, kind) for dim in HEAD_DIMS for kind in CACHES))
    if capability == HOPPER and release < releases.DELTA_NET_NOT_BY_NVCC:
        return (SAMPLING, DELTA_NET)
    return (SAMPLING,)


def _attention(head_dim: int, cache: str) -> Kernel:
    return Kernel(
        label=f"attention-{head_dim}-{cache}",
        generator="flashinfer.jit.attention:gen_batch_prefill_module",
        arguments={
            "backend": "fa2",
            "dtype_q": "torch.float16",
            "dtype_kv": CACHES[cache],
            "dtype_o": "torch.float16",
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
    """How many compilers may run at once: one a core, as far as the host's memory goes."""
    return max(1, min(cpus, memory_mib // COMPILER_MIB))


def missing(engine: EngineInfo, capability: tuple[int, int]) -> tuple[str, ...]:
    """Labels of what a start of this engine on such a card may have to compile."""
    if engine.build != "cuda" or not engine.flashinfer or engine.jit_cache:
        return ()
    have = dict(engine.kernels).get("sm{}{}".format(*capability), ())
    wanted = (kernel.label for kernel in kernels(engine.release, capability))
    return tuple(label for label in wanted if label not in have)
