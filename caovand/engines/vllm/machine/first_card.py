"""The first visible card, by which vLLM chooses the kernels of every card.

Every rank asks for the capability of device 0, in 0.21 as in 0.33. What is chosen for an older card
runs on newer ones; what is chosen for a newer one may not run, or not compile, on an older, such as
Triton's fp8 on an RTX 3090 next to a 4090 (vllm#19741).
"""

from __future__ import annotations

from collections.abc import Sequence

from caovand.core.facts.inventory import Gpu, ModelCard
from caovand.core.problem import Problem
from caovand.engines.vllm.machine import tiles
from caovand.engines.vllm.machine.capabilities import ADA, BLACKWELL

FOUR_BIT_FLOATS = {"modelopt_fp4": "NVFP4", "mxfp4": "MXFP4"}


def oldest_first(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The cards by capability; those that are alike in their own order."""
    return tuple(sorted(gpus, key=lambda gpu: gpu.compute_capability))


def float_weights(model: ModelCard, quantization: str) -> str:
    """The floats of 8 or 4 bits as which the weights are stored, or quantised while loading; empty
    for others."""
    if tiles.is_fp8(model, quantization):
        return "fp8"
    return FOUR_BIT_FLOATS.get(model.quantization or "", "")


def misplaced(gpus: Sequence[Gpu], weights: str, cache: str) -> Problem | None:
    """Why kernels chosen for the first of these cards may not run on the oldest; None if it is the
    first, or if neither weights nor cache are floats of 8 or 4 bits."""
    ordered = oldest_first(gpus)
    if not gpus or gpus[0].compute_capability == ordered[0].compute_capability:
        return None
    kinds = [f"{weights} weights"] * bool(weights) + [f"an {cache} cache"] * ("fp8" in cache)
    if not kinds:
        return None
    return Problem(
        f"compute {' and '.join(kinds)} on {_named(ordered[0])}",
        f"vLLM chooses the kernels of all cards by the first, {_named(gpus[0])}",
        f"set [engine] gpus = {[gpu.index for gpu in ordered]}",
    )


def never_runs(gpus: Sequence[Gpu], weights: str) -> bool:
    """Whether the first card computes such weights itself, which the oldest cannot."""
    least = {"fp8": ADA, "NVFP4": BLACKWELL}.get(weights)
    if least is None or not gpus:
        return False
    return gpus[0].compute_capability >= least > oldest_first(gpus)[0].compute_capability


def _named(gpu: Gpu) -> str:
    return "GPU {} (SM{}{})".format(gpu.index, *gpu.compute_capability)
