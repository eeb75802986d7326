"""Refusals by FlashInfer's own code: rows for engines that call it. Their words suggest a broken
toolkit or too little card memory; they are neither.
"""

from __future__ import annotations

from collections.abc import Mapping

from caovand.engines.common.logs.signature import signature

ROWS = (
    # RuntimeError: No supported CUDA architectures found for major versions [10].
    signature("flashinfer.card", "cause", "backend-unsupported",
         r"No supported CUDA architectures found for major versions \[(?P<majors>[\d, ]{1,40})\]"),
    # Its planner divides a buffer of fixed size: Failed to allocate memory for
    # batch_prefill_tmp_v with size 435814400 and alignment 16 in AlignedAllocator
    signature("flashinfer.workspace", "cause", "backend-unsupported",
         r"Failed to allocate memory for (?P<buffer>\w{1,60}) with size (?P<wanted>\d{1,18})"
         r" and alignment \d{1,6} in AlignedAllocator"
         r"|\bBuffer overflow when allocating memory for (?P<part>\w{1,60}) with size \d"),
)  # fmt: skip
ADVICE: Mapping[str, tuple[str, ...]] = {
    "flashinfer.card": (
        "FlashInfer has this kernel only for compute capabilities that begin with {majors}, and "
        "found none of them to build for: the card has another one (nvidia-smi "
        "--query-gpu=compute_cap), or FLASHINFER_CUDA_ARCH_LIST leaves it out. Memory and CUDA "
        "graphs are not the cause, even if other lines propose to change them.",
        "Let the engine use another backend for that part, which the traceback or the arguments "
        "name: attention (--attention-backend, such as triton), experts (SGLang: "
        "--moe-runner-backend triton, for MXFP4 triton_kernel; vLLM: --moe-backend triton, before "
        "that VLLM_USE_FLASHINFER_MOE_*=0) or sampling (VLLM_USE_FLASHINFER_SAMPLER=0); or install "
        "a release of FlashInfer and of the engine that supports the card.",
    ),
    "flashinfer.workspace": (
        "FlashInfer's workspace, a buffer of fixed size, is too small for this batch ({buffer} "
        "takes {wanted} bytes). The card's memory is not full: memory shares do not help.",
        "FlashInfer's workspace, a buffer of fixed size, is too small for this batch ({part}). The "
        "card's memory is not full: memory shares do not help.",
        "Make it larger (SGLANG_FLASHINFER_WORKSPACE_SIZE or VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE "
        "in bytes, such as 1073741824), or install a newer release, which may size it itself; else "
        "compute fewer tokens a step (--chunked-prefill-size, --max-num-batched-tokens) or "
        "attention with another backend (--attention-backend triton).",
    ),
}
"""Sentences by row; one with an unknown {name} is left out."""
