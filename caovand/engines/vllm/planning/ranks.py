"""How many ranks a plan has, and on which cards of which node each lies, as vLLM deals them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from caovand.core.facts.inventory import Gpu, Node
from caovand.engines.vllm.planning.spelling import count

TENSOR, PIPELINE, REPLICAS = (
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"
)  # fmt: skip
HEAD = "head"
"""What the node is called that plans for several."""
SMALL_CARD = 2
"""A card with less than this part of the largest one's memory would hold the others back."""


def stages(values: Mapping[str, Any]) -> int:
    """How many cards hold one place in the split: pipeline stages times replicas."""
    return prod(count(values.get(name)) or 1 for name in (PIPELINE, REPLICAS))


def replicas(values: Mapping[str, Any]) -> int:
    """How many engines serve the model side by side, each with cards of its own."""
    return count(values.get(REPLICAS)) or 1


def spans_machines(values: Mapping[str, Any]) -> bool:
    """Whether the engine runs on several machines, whose cards are not all seen here."""
    flags = ("nnodes", "data_parallel_address", "data_parallel_size_local")
    return any(values.get(name) is not None for name in flags)


def large(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The cards that hold none of the others back."""
    largest = max((gpu.total_mib for gpu in gpus), default=0)
    return tuple(gpu for gpu in gpus if gpu.total_mib * SMALL_CARD >= largest)


def ranks_here(values: Mapping[str, Any], nodes: int) -> int:
    """How many ranks each of so many nodes has."""
    return max((count(values.get(TENSOR)) or 1) * stages(values) // nodes, 1)


def serving(
    gpus: Sequence[Gpu], others: Sequence[Node], values: Mapping[str, Any]
) -> tuple[tuple[str, Gpu], ...]:
    """The cards of all nodes by rank, each with its node, which has no name where it is alone."""
    if not others:
        return tuple(("", gpu) for gpu in gpus)
    each = ranks_here(values, 1 + len(others))
    nodes = ((HEAD, gpus), *((node.name, node.gpus) for node in others))
    return tuple((name, gpu) for name, held in nodes for gpu in held[:each])
