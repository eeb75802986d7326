"""Ranks on cards and nodes, as vLLM deals them, and what a link between nodes costs.

Tensor parallel lets all cards read their part of every layer at once, and reduces their results
over the link twice a layer. Of a pipeline the nodes work one after the other, and each sends one
activation to the next. All time on the link is added to that of reading the weights, as nothing
overlaps in a step. The requests of several users share a step of tensor parallel, and so its
all-reduces; in a pipeline the nodes work on different ones at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from caovand.core.facts.inventory import Gpu, Inventory, Node
from caovand.core.facts.network import Network
from caovand.engines.common.speeds import stated
from caovand.engines.vllm.flags.spelling import count

TENSOR, PIPELINE, REPLICAS = (
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"
)  # fmt: skip
HEAD = "head"
"""The name of the node that plans for all of them."""
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
    """The cards large enough not to hold the others back."""
    largest = max((gpu.total_mib for gpu in gpus), default=0)
    return tuple(gpu for gpu in gpus if gpu.total_mib * SMALL_CARD >= largest)


def ranks_here(values: Mapping[str, Any], nodes: int) -> int:
    """How many ranks each of so many nodes has."""
    return max((count(values.get(TENSOR)) or 1) * stages(values) // nodes, 1)


def serving(
    gpus: Sequence[Gpu], others: Sequence[Node], values: Mapping[str, Any]
) -> tuple[tuple[str, Gpu], ...]:
    """The cards of all nodes by rank, each with its node, which has no name if it is alone."""
    if not others:
        return tuple(("", gpu) for gpu in gpus)
    each = ranks_here(values, 1 + len(others))
    nodes = ((HEAD, gpus), *((node.name, node.gpus) for node in others))
    return tuple((name, gpu) for name, held in nodes for gpu in held[:each])


CARDS_ALIKE = 0.02
"""Cards whose memory differs by less than this part are of one kind."""


def alike(one: Gpu, other: Gpu) -> bool:
    """Whether two cards have the same memory and speed."""
    larger, smaller = max(one.total_mib, other.total_mib), min(one.total_mib, other.total_mib)
    return larger - smaller <= CARDS_ALIKE * larger and (
        one.name == other.name or stated(one) == stated(other)
    )


ALL_REDUCES = 2
"""All-reduces a layer: behind attention, and behind the MLP or the experts."""
ALL_REDUCE_S = 40e-6
"""NCCL's own time for an all-reduce over sockets, on top of the link's: an estimate."""
SENT = 2
"""Tensors that a stage sends to the next: hidden states, and the residual."""
ASSUMED = Network(117e6, 200e-6)
"""A link of unknown speed: gigabit Ethernet through a switch."""


@dataclass(frozen=True)
class Nodes:
    """Over how many nodes cards are dealt evenly, by rank, and the link between those."""

    count: int = 1
    link: Network = ASSUMED


ALONE = Nodes()


def nodes_of(inventory: Inventory) -> Nodes:
    """The nodes that serve the model together, over their link, or the one that is assumed."""
    return Nodes(1 + len(inventory.others), inventory.link or ASSUMED)


@dataclass(frozen=True)
class Work:
    """What a token takes of a model: `element` bytes of an activation, `read` bytes of weights, and
    the tokens of a usual prompt and answer, of so many users at once."""

    hidden: int
    layers: int
    vocabulary: int
    element: int
    read: float
    prompt: int
    answer: int
    users: int = 1


@dataclass(frozen=True)
class Modelled:
    """Seconds a token takes, and how many of them on the link."""

    seconds: float
    on_link: float


def all_reduce_s(nodes: int, link: Network) -> float:
    """Seconds of an empty all-reduce over nodes: a ring of N takes 2 (N - 1) turns."""
    return ALL_REDUCE_S + 2 * (nodes - 1) * link.round_trip_s / 2


def transfer_s(nodes: int, link: Network, size: float) -> float:
    """Seconds that so many bytes add: in each turn of the ring one part of N is sent."""
    return 2 * (nodes - 1) / nodes * size / link.bytes_s


def tensor(work: Work, link: Network, bytes_s: Sequence[float]) -> Modelled:
    """Tensor parallel over nodes, whose cards together read so many bytes a second each.

    Logits are gathered as well.
    """
    nodes = len(bytes_s)
    size = work.users * work.hidden * work.element
    each = all_reduce_s(nodes, link) + transfer_s(nodes, link, size)
    logits = work.users * work.vocabulary * work.element * (nodes - 1) / nodes / link.bytes_s
    prompt = work.prompt * ALL_REDUCES * work.layers * transfer_s(nodes, link, size)
    on_link = (
        ALL_REDUCES * work.layers * each
        + logits
        + (nodes - 1) * link.round_trip_s / 2
        + prompt / work.answer
    )
    return Modelled(work.read / nodes / min(bytes_s) + on_link, on_link)


def pipeline(work: Work, link: Network, bytes_s: Sequence[float]) -> Modelled:
    """A pipeline of as many stages, which read their part of the weights one after the other."""
    nodes = len(bytes_s)
    size = SENT * work.hidden * work.element * max(work.users / nodes, 1)
    step = (nodes - 1) * (link.round_trip_s / 2 + size / link.bytes_s) + link.round_trip_s / 2
    prompt = work.prompt * (nodes - 1) * size / link.bytes_s
    on_link = step + prompt / work.answer
    return Modelled(sum(work.read / nodes / speed for speed in bytes_s) + on_link, on_link)


def decide(work: Work, link: Network, bytes_s: Sequence[float]) -> tuple[bool, str]:
    """Whether tensor parallel is faster, and the modelled reason."""
    split, stages = tensor(work, link, bytes_s), pipeline(work, link, bytes_s)
    text = (
        f"over this link ({link.bytes_s / 1e9:.3g} GB/s, {link.round_trip_s * 1e3:.2g} ms there and"
        f" back) a token takes {_ms(split.seconds)} with tensor parallel, {_ms(split.on_link)} of"
        f" them on the link, and {_ms(stages.seconds)} in stages (modelled)"
    )
    if link.rdma:
        text += "; that is TCP over their interfaces, and NCCL uses InfiniBand or RoCE"
    return split.seconds < stages.seconds, text


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
