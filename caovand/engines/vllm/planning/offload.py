"""What weights in host memory cost: every step reads them over the PCIe bus."""

from __future__ import annotations

from collections.abc import Sequence

from caovand.core.facts.inventory import Gpu, ModelCard
from caovand.engines.common.speeds import host_link
from caovand.engines.vllm.memory.estimate import OFFLOADED

GB_A_GIB = 1.074


def experts_read(model: ModelCard, tokens: float) -> float:
    """The share of the experts that a step of so many tokens reads."""
    if not model.experts or not model.experts_per_token:
        return 1.0
    return float(1 - (1 - model.experts_per_token / model.experts) ** tokens)


def read_of_offloaded(model: ModelCard, tokens: float) -> float:
    """The share of the weights in host memory that such a step reads: kernels reach through the
    bus for the experts they compute, whole layers being there."""
    experts, moved = model.size("experts"), model.size(*OFFLOADED)
    if not moved:
        return 1.0
    return (moved - experts + experts * experts_read(model, tokens)) / moved


def step_seconds(
    offload_gib: float, model: ModelCard, gpus: Sequence[Gpu], tokens: float = 1
) -> float:
    """How much longer a step of so many tokens takes."""
    read = offload_gib * GB_A_GIB * read_of_offloaded(model, tokens)
    return read / host_link(gpus)[2]


def step_cost(offload_gib: float, model: ModelCard, gpus: Sequence[Gpu], tokens: float = 1) -> str:
    """How much longer each step takes, in words."""
    generation, lanes, rate = host_link(gpus)
    seconds = step_seconds(offload_gib, model, gpus, tokens)
    shown = f"{seconds:.2g}" if seconds < 10 else f"{seconds:.0f}"
    read = read_of_offloaded(model, tokens)
    of_them = "" if read > 0.99 else f" of which it reads {read:.0%},"
    return (
        f"each step waits about {shown} s for {offload_gib:g} GiB a card,{of_them} over PCIe"
        f" {generation}.0 x{lanes} ({rate:.0f} GB/s)"
    ).replace("a card, over", "a card over")
