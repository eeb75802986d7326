"""The time that weights in host memory cost: a step reads them over the bus."""

from __future__ import annotations

from collections.abc import Sequence

from caovand.core.facts.inventory import Gpu, ModelCard
from caovand.engines.common.speeds import host_link
from caovand.engines.common.tensors import experts_read
from caovand.engines.vllm.memory.shards import OFFLOADED

GB_A_GIB = 1.074


def read_of_offloaded(model: ModelCard, tokens: float) -> float:
    """The fraction of the weights in host memory that such a step reads: kernels fetch over the bus
    only the experts that they compute, but whole layers are fetched completely."""
    experts, moved = model.size("experts"), model.size(*OFFLOADED)
    if not moved:
        return 1.0
    return (moved - experts + experts * experts_read(model, tokens)) / moved


def step_seconds(
    offload_gib: float, model: ModelCard, gpus: Sequence[Gpu], tokens: float = 1
) -> float:
    """Seconds by which weights in host memory lengthen a step of `tokens` tokens."""
    read = offload_gib * GB_A_GIB * read_of_offloaded(model, tokens)
    return read / host_link(gpus)[2]


def step_cost(offload_gib: float, model: ModelCard, gpus: Sequence[Gpu], tokens: float = 1) -> str:
    """Say how much longer each step takes."""
    generation, lanes, rate = host_link(gpus)
    seconds = step_seconds(offload_gib, model, gpus, tokens)
    shown = f"{seconds:.2g}" if seconds < 10 else f"{seconds:.0f}"
    read = read_of_offloaded(model, tokens)
    of_them = "" if read > 0.99 else f", of which it reads {read:.0%},"
    return (
        f"each step waits about {shown} s for {offload_gib:g} GiB a card{of_them} over PCIe"
        f" {generation}.0 x{lanes} ({rate:.0f} GB/s)"
    )
