"""The cost of a link between nodes: the time of a token with tensor parallelism, or in a pipeline.

With tensor parallelism all cards read their part of every layer at once, and all-reduce their
results over the link twice a layer. In a pipeline the nodes work one after the other, and each
sends one activation to the next. All time on the link is added to the time of reading weights, as
nothing overlaps in a step. With tensor parallelism the requests of several users share a step, and
so its all-reduces; in a pipeline the nodes work on different requests at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caovand.core.facts.inventory import Inventory
from caovand.core.facts.network import Network
from caovand.engines.common.speeds import ALL_REDUCES, transfer_s

ALL_REDUCE_S = 40e-6
"""NCCL's own overhead for an all-reduce over sockets, on top of the link's; an estimate."""
TENSORS_PER_STAGE = 2
"""Tensors that a stage sends to the next: hidden states, and the residual."""
ASSUMED_NETWORK = Network(117e6, 200e-6)
"""Assumed for a link of unknown speed: gigabit Ethernet through a switch."""


@dataclass(frozen=True)
class NodeGroup:
    """The number of nodes that serve together, the cards of each, and the link between them."""

    count: int = 1
    link: Network = ASSUMED_NETWORK


ONE_NODE = NodeGroup()


def nodes_of(inventory: Inventory) -> NodeGroup:
    """The nodes that serve the model together, with their link, or an assumed one."""
    return NodeGroup(1 + len(inventory.others), inventory.link or ASSUMED_NETWORK)


@dataclass(frozen=True)
class TokenWork:
    """The work of a token: `element` bytes per element of an activation, `read` bytes of weights,
    and the tokens of a usual prompt and answer, for `users` users at once."""

    hidden: int
    layers: int
    vocabulary: int
    element: int
    read: float
    prompt: int
    answer: int
    users: int = 1


@dataclass(frozen=True)
class TokenTime:
    """Seconds per token, and the part of them spent on the link."""

    seconds: float
    on_link: float


def all_reduce_s(nodes: int, link: Network) -> float:
    """Seconds of an empty all-reduce over nodes: a ring of N takes 2 (N - 1) turns."""
    return ALL_REDUCE_S + 2 * (nodes - 1) * link.round_trip_s / 2


def time_tensor_parallel(work: TokenWork, link: Network, bytes_s: Sequence[float]) -> TokenTime:
    """The time of a token with tensor parallelism over nodes; logits are gathered as well.

    `bytes_s` is the memory bandwidth of each node's cards together.
    """
    nodes = len(bytes_s)
    size = work.users * work.hidden * work.element
    added = transfer_s(nodes, link.bytes_s, size)
    each = all_reduce_s(nodes, link) + added
    logits = work.users * work.vocabulary * work.element * (nodes - 1) / nodes / link.bytes_s
    prompt = work.prompt * ALL_REDUCES * work.layers * added
    on_link = (
        ALL_REDUCES * work.layers * each
        + logits
        + (nodes - 1) * link.round_trip_s / 2
        + prompt / work.answer
    )
    return TokenTime(work.read / nodes / min(bytes_s) + on_link, on_link)


def time_pipeline(work: TokenWork, link: Network, bytes_s: Sequence[float]) -> TokenTime:
    """The time of a token in a pipeline, whose stages read their weights one after the other."""
    nodes = len(bytes_s)
    size = TENSORS_PER_STAGE * work.hidden * work.element * max(work.users / nodes, 1)
    step = (nodes - 1) * (link.round_trip_s / 2 + size / link.bytes_s) + link.round_trip_s / 2
    prompt = work.prompt * (nodes - 1) * size / link.bytes_s
    on_link = step + prompt / work.answer
    return TokenTime(sum(work.read / nodes / speed for speed in bytes_s) + on_link, on_link)


def compare_tensor_parallel(
    work: TokenWork, link: Network, bytes_s: Sequence[float]
) -> tuple[bool, str]:
    """Whether tensor parallel is faster, and the modelled reason."""
    split, stages = time_tensor_parallel(work, link, bytes_s), time_pipeline(work, link, bytes_s)
    times = (
        f"over this link ({link.bytes_s / 1e9:.3g} GB/s, {link.round_trip_s * 1e3:.2g} ms round "
        f"trip) a token takes {_ms(split.seconds)} with tensor parallel, {_ms(split.on_link)} of "
        f"them on the link, and {_ms(stages.seconds)} in stages (modelled)"
    )
    if link.rdma:
        times += "; that is TCP over their interfaces, but NCCL uses InfiniBand or RoCE"
    return split.seconds < stages.seconds, times


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
