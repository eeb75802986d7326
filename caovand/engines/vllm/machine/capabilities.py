"""Compute capabilities, and the number types that vLLM supports for a card and a model.

The refusals mirror vllm/config/model.py and quantization/.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from caovand.core.facts.inventory import Gpu, ModelCard
from caovand.core.problem import Problem

TURING = (7, 5)
"""The oldest capability that vLLM 0.21 has kernels for; older cards are never chosen."""
AMPERE = (8, 0)
"""The first with bfloat16."""
ADA = (8, 9)
"""The first that converts 8-bit floats in hardware."""
HOPPER = (9, 0)
BLACKWELL = (10, 0)
OWN_FP8 = HOPPER[0], BLACKWELL[0]
"""Generations on which vLLM's preferred attention reads an fp8 cache."""
WITHOUT_HALF = frozenset({"gemma2", "gemma3", "gemma3_text", "glm4", "plamo2"})
"""Model types that overflow in float16: vLLM accepts only bfloat16 or float32."""
WITH_FLOAT32 = frozenset({"bitsandbytes", "gguf"})
"""Quantisations that also compute in float32. The kernels of the others accept 16-bit types only;
with those of compressed-tensors a start begins, and fails at the first step."""
MIN_CAPABILITY = {
    "mxfp4": AMPERE,
    "fbgemm_fp8": AMPERE,
    "experts_int8": AMPERE,
    "modelopt": AMPERE,
    "modelopt_mxfp8": AMPERE,
    "fp_quant": BLACKWELL,
}
"""Quantisations that need a later card than vLLM itself (SM75), in 0.21 as in 0.33.

ModelOpt's fp8 and mxfp8 are read from 0.32; its 4-bit floats run from SM75.
"""
EXCLUSIVE = frozenset({"awq", "gptq", "fp8", "bitsandbytes", "compressed-tensors"})
"""Methods of --quantization that vLLM refuses if the checkpoint is quantised by another method."""


def method(name: str) -> str:
    """The quantisation method behind a value of --quantization, whatever its kernel."""
    return name.removeprefix("auto_").removesuffix("_marlin")


HALF = frozenset({"half", "float16"})


def oldest_without(gpus: Sequence[Gpu], capability: tuple[int, int]) -> str:
    """Description of the first card older than this; empty if there is none."""
    return _first_card(gpu for gpu in gpus if gpu.compute_capability < capability)


def first_of(gpus: Sequence[Gpu], generation: int) -> str:
    """Description of the first card of this generation; empty if there is none."""
    return _first_card(gpu for gpu in gpus if gpu.compute_capability[0] == generation)


def first_outside(gpus: Sequence[Gpu], first: tuple[int, int], below: tuple[int, int]) -> str:
    """Description of the first card outside these capabilities; empty if all are inside."""
    return _first_card(gpu for gpu in gpus if not first <= gpu.compute_capability < below)


def _first_card(gpus: Iterable[Gpu]) -> str:
    gpu = next(iter(gpus), None)
    return "GPU {} is SM{}{}".format(gpu.index, *gpu.compute_capability) if gpu else ""


def type_without_bfloat16(model: ModelCard) -> str:
    """The type in which a card before SM80 computes this model."""
    return "float32" if model.model_type in WITHOUT_HALF else "half"


def lacks_bfloat16(gpus: Sequence[Gpu], dtype: str) -> str:
    """Description of the first card without bfloat16 if `dtype` is that type; else empty."""
    return oldest_without(gpus, AMPERE) if dtype == "bfloat16" else ""


def refused_type(
    model: ModelCard, quantization: str | None, dtype: str, old: str
) -> Problem | None:
    """Why vLLM refuses this dtype; `old` names a pre-SM80 card, or is empty."""
    if dtype in HALF and model.model_type in WITHOUT_HALF:
        other = "float32" if old else "bfloat16"
        fact = f"vLLM refuses it for models of type {model.model_type}"
        return Problem("use --dtype half", fact, f"use --dtype {other}")
    if dtype in ("float32", "float") and quantization and quantization not in WITH_FLOAT32:
        remedy = "use --dtype half"
        if model.model_type in WITHOUT_HALF:
            remedy = "use a card of SM80 or newer, or an unquantised checkpoint"
        why = f" ({old}, which has no bfloat16)" if old else ""
        fact = f"{quantization} supports 16-bit types only"
        return Problem(f"compute in float32{why}", fact, remedy)
    return None
