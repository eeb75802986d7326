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

from caovand.core.facts.inventory import Network

SUMS = 2
"""All-reduces a layer: behind attention, and behind the MLP or the experts."""
SUM_S = 40e-6
"""NCCL's own time for a sum over sockets, beside the link's: an estimate, not measured here."""
SENT = 2
"""Tensors that a stage sends to the next: hidden states, and the residual."""


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


def tensor(work: Work, link: Network, bytes_s: Sequence[float]) -> Modelled:
    """Tensor parallel over nodes, whose cards together read so many bytes a second each.

    A ring of N nodes takes 2 (N - 1) turns, in each of which a part of N is sent. Logits are
    gathered as well.
    """
    nodes = len(bytes_s)
    turns, share = 2 * (nodes - 1), 2 * (nodes - 1) / nodes
    size = work.users * work.hidden * work.element
    on_wire = turns * link.round_trip_s / 2 + share * size / link.bytes_s
    sums = SUMS * work.layers * (SUM_S + on_wire)
    logits = work.users * work.vocabulary * work.element * (nodes - 1) / nodes / link.bytes_s
    prompt = work.prompt * SUMS * work.layers * share * size / link.bytes_s
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
    return sums.seconds < stages.seconds, text


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
