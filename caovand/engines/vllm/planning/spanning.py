"""Whether tensor parallel over the link between nodes is faster than a pipeline over them.

Tensor parallel lets all cards read their part of every layer at once, and sums their results over
the link twice a layer. Of a pipeline the nodes work one after the other, and each sends one
activation to the next. All time on the link is added to that of reading the weights, as nothing
overlaps in a step. The requests of several users share a step of tensor parallel, and so its sums;
in a pipeline the nodes work on different ones at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caovand.core.facts.inventory import Inventory, Network

SUMS = 2
"""All-reduces a layer: behind attention, and behind the MLP or the experts."""
SUM_S = 40e-6
"""NCCL's own time for a sum over sockets, beside the link's: an estimate, not measured here."""
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


def sum_s(nodes: int, link: Network) -> float:
    """A sum of nothing over nodes: a ring of N takes 2 (N - 1) turns."""
    return SUM_S + 2 * (nodes - 1) * link.round_trip_s / 2


def summed_s(nodes: int, link: Network, size: float) -> float:
    """What so many bytes take more: in each turn of the ring a part of N is sent."""
    return 2 * (nodes - 1) / nodes * size / link.bytes_s


def tensor(work: Work, link: Network, bytes_s: Sequence[float]) -> Modelled:
    """Tensor parallel over nodes, whose cards together read so many bytes a second each.

    Logits are gathered as well.
    """
    nodes = len(bytes_s)
    size = work.users * work.hidden * work.element
    sums = SUMS * work.layers * (sum_s(nodes, link) + summed_s(nodes, link, size))
    logits = work.users * work.vocabulary * work.element * (nodes - 1) / nodes / link.bytes_s
    prompt = work.prompt * SUMS * work.layers * summed_s(nodes, link, size)
    on_link = sums + logits + (nodes - 1) * link.round_trip_s / 2 + prompt / work.answer
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
    sums, stages = tensor(work, link, bytes_s), pipeline(work, link, bytes_s)
    text = (
        f"over this link ({link.bytes_s / 1e9:.3g} GB/s, {link.round_trip_s * 1e3:.2g} ms there and"
        f" back) a token takes {_ms(sums.seconds)} with tensor parallel, {_ms(sums.on_link)} of"
        f" them on the link, and {_ms(stages.seconds)} in stages (modelled)"
    )
    if link.rdma:
        text += "; that is TCP over their interfaces, and NCCL uses InfiniBand or RoCE"
    return sums.seconds < stages.seconds, text


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
