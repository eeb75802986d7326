"""Host memory that offloaded weights take.

vLLM copies each parameter to pinned memory, and PyTorch's allocator rounds each copy up to a power
of two (read in 0.21 and 0.33; reported as 1.9 times what was asked for, vllm#56410 and #58178).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from caovand.core.facts.inventory import ModelCard
from caovand.engines.vllm.memory.shards import BYTES_EACH, FOUR_BITS

MAX_GROWTH = 2.0
"""The factor by which rounding can grow a tensor whose shape is unknown."""


def pinned_gib(offload_gib: float, model: ModelCard, ranks: int) -> float:
    """GiB of host memory that these GiB of each rank's weights take on all ranks."""
    return offload_gib * ranks * rounding(model, ranks)


def rounding(model: ModelCard, ranks: int) -> float:
    """How many times larger the copies are than the weights of a layer."""
    each = BYTES_EACH.get(model.quantization, FOUR_BITS)
    sizes = [ceil(elements * each) for elements in _parameters(model, ranks) if elements]
    if not sizes:
        return MAX_GROWTH
    return sum(1 << (size - 1).bit_length() for size in sizes) / sum(sizes)


def _parameters(model: ModelCard, ranks: int) -> Iterator[int]:
    """Elements of a layer's parameters on one rank, fused as vLLM has them."""
    hidden = model.hidden_size
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    yield hidden * (queries + 2 * keys) // ranks
    yield hidden * queries // ranks
    inner = (model.expert_size or model.intermediate_size) if model.experts else 0
    for width in (model.experts * inner, 0 if model.experts else model.intermediate_size):
        yield 2 * hidden * width // ranks
        yield hidden * width // ranks
