"""Kernels without code for the card in packages other than PyTorch and the engine: by the frames.

What a package lacks neither another type nor PyTorch's build brings: the engine must do without the
package, or the package must be built for the card.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from caovand.engines.common.logs.rows.runtime import NO_KERNEL
from caovand.engines.common.logs.signature import Signature, signature

_ATTENTION = ("flash_attn", "flash_mla", "sageattention", "xformers")
_WITHOUT: Mapping[str, str] = {
    "lmcache": "without LMCache's connector in --kv-transfer-config",
    **dict.fromkeys(_ATTENTION, "with another attention backend: --attention-backend"),
    "flashinfer": "with other backends for attention (--attention-backend), experts and sampling "
    "(VLLM_USE_FLASHINFER_SAMPLER=0)",
    "bitsandbytes": "with the model in another quantization",
    "auto_gptq": "with the engine's own kernels for GPTQ",
    "gptqmodel": "with the engine's own kernels for GPTQ",
    "exllamav2": "with the engine's own kernels for GPTQ",
    "causal_conv1d": "without it: pip uninstall, where the engine has such kernels of its own",
    "mamba_ssm": "without it: pip uninstall, where the engine has such kernels of its own",
    "deep_gemm": "without it: VLLM_USE_DEEP_GEMM=0, SGLANG_ENABLE_JIT_DEEPGEMM=0",
    "deep_ep": "with another exchange of experts: --all2all-backend, --moe-a2a-backend none",
    "transformer_engine": "without the option that uses it",
    "apex": "without it: pip uninstall",
    "torchvision": "with the torchvision of the same index as PyTorch",
    "torchao": "with the model in another quantization",
    "natten": "without the option that uses it",
    "fbgemm_gpu": "with the model in another quantization",
}
"""Packages with kernels of their own, and how to start without them."""
_PYTORCH = re.compile(r"/(?:torch|triton)/")
"""Code below the one that asks for a kernel."""
PACKAGE = signature("kernels.package", "cause", "backend-unsupported", NO_KERNEL)
ATTENTION = signature("kernels.attention", "cause", "backend-unsupported", NO_KERNEL)
FLASHINFER = signature("kernels.flashinfer", "cause", "backend-unsupported", NO_KERNEL)
ROWS = (PACKAGE, ATTENTION, FLASHINFER)
_ROW_OF = {
    **dict.fromkeys(_ATTENTION, ATTENTION),
    "flashinfer": FLASHINFER,
}
_OF_OWNER = (
    "{owner} has no kernels for this card: the installed build of it was compiled without the "
    "card's compute capability (nvidia-smi --query-gpu=compute_cap shows it). PyTorch and the "
    "engine are not the cause.",
    "Start {without}; or install a release of {owner} that supports the card, or compile it here "
    "(TORCH_CUDA_ARCH_LIST with that number, such as 12.0, and pip install --no-build-isolation "
    "--no-binary :all: --no-deps with the name of its package).",
)
ADVICE: Mapping[str, tuple[str, ...]] = {row.id: _OF_OWNER for row in ROWS}
"""Sentences by row; one with an unknown {name} is left out."""


def with_owner(
    row: Signature, captures: Mapping[str, str], frames: Sequence[str]
) -> tuple[Signature, Mapping[str, str]]:
    """The row and captures of a card without code, by the package of the last frame.

    The same row if that is PyTorch, the engine, or unknown, and for an image that the driver
    refuses.
    """
    asking = [frame for frame in frames if not _PYTORCH.search(frame)]
    owner = _owner(asking[-1]) if asking and "image" not in captures else ""
    if not owner:
        return row, captures
    return _ROW_OF.get(owner, PACKAGE), {**captures, "owner": owner, "without": _WITHOUT[owner]}


def _owner(frame: str) -> str:
    """The package in a frame's path, as a folder or a file: flash_attn_2 is flash_attn's."""
    parts = [part.removesuffix(".py") for part in frame.rpartition(":")[0].split("/")]
    return next(
        (name for part in parts for name in _WITHOUT if f"{part}_".startswith(f"{name}_")), ""
    )
