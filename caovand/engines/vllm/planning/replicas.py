"""Replicas for a batch: engines side by side that share the requests (--data-parallel-size)."""

from __future__ import annotations

from collections.abc import Iterator

from caovand.core.plan import Setting
from caovand.engines.common.speeds import all_linked
from caovand.engines.vllm.flags.spelling import option
from caovand.engines.vllm.machine.ranks import (
    REPLICAS,
    Split,
    alike,
    largest_split,
    splits_below,
)
from caovand.engines.vllm.memory.candidate import MIB
from caovand.engines.vllm.planning.devices import is_single_node
from caovand.engines.vllm.planning.partial_plan import PartialPlan, policy

SMALL = 1 / 2
"""Maximum fraction of one card that the weights of a small model take."""


def data_parallel_size(partial: PartialPlan) -> Setting | None:
    if not partial.split or partial.split.replicas == 1:
        return None
    reason = "a batch: each replica serves its own requests, and waits for no other's cards"
    if partial.model.experts and not partial.model.latent:
        reason = (
            "a batch: attention is each replica's own, and waits for no other card; one engine over"
            " all these cards would be slower, or leave some idle"
        )
    elif partial.model.experts:
        reason = (
            "a batch: each replica caches its own requests; all cards of one engine would hold the "
            "same cache"
        )
    return policy(partial.split.replicas, reason)


def replica_splits(partial: PartialPlan) -> Iterator[Split]:
    """Splits into replicas, for a batch on cards that are alike.

    Experts are spread over all replicas, which then step together. That suits latent caches, of
    which all cards of one engine would hold the same; cards that one engine would leave idle; and
    small models, whose attention need not wait for other cards in every layer. It needs NVLink,
    since all tokens pass between the cards.
    """
    model, cards = partial.model, len(partial.gpus)
    known = not partial.engine.flags or option(REPLICAS) in partial.engine.flags
    batch = partial.config.policy.workload == "batch" and partial.generates
    if not (batch and known and is_single_node(partial)) or cards < 2:
        return
    if not all(alike(partial.gpus[0], gpu) for gpu in partial.gpus):
        return
    if model.experts:
        small = model.size() <= SMALL * min(gpu.total_mib for gpu in partial.gpus) * MIB
        helps = model.latent or small or largest_split(model, cards) < cards
        if not helps or model.experts % cards or not all_linked(partial.gpus):
            return
    for size in splits_below(model, cards, whole_experts=bool(model.experts)):
        if cards % size == 0:
            yield Split(size, replicas=cards // size)
