"""Estimate requests per second of a load, with a coarse model that ranks splits over cards."""

from __future__ import annotations

from collections.abc import Sequence

from caovand.core.facts.inventory import Gpu, ModelCard
from caovand.engines.common.speeds import LINKED_S, UNLINKED_S, all_linked, host_link, slowest
from caovand.engines.common.tensors import part_of_experts, weights_of
from caovand.engines.common.usual_requests import USUAL_REQUESTS
from caovand.engines.sglang.memory.load import Load, token_bytes, weights_bytes
from caovand.engines.sglang.memory.steps import LARGEST_GRAPH

LINKED_GB_S = 150.0
"""Approximate all-reduce bandwidth of NVLink: an A100's reaches 230, an A6000's bridge 50."""
ALL_REDUCES = 2
"""All-reduces per layer: after attention, and after the MLP or the experts."""
USERS = {"chat": 16, "long": 4}
"""Concurrent users by workload; in a batch, as many as the largest graphs serve."""


def requests_a_second(
    model: ModelCard, load: Load, tokens: int, gpus: Sequence[Gpu], workload: str
) -> float:
    """Typical requests per second of cards whose caches hold `tokens` in each group."""
    usual = USUAL_REQUESTS[workload]
    each = usual.held
    users = USERS.get(workload) or LARGEST_GRAPH * load.attention_groups
    at_once = max(min(tokens // each * load.attention_groups, users), 1)
    speed, active = slowest(gpus), part_of_experts(model)
    read = weights_bytes(model, load, "layers", "head")
    read += weights_bytes(model, load, "experts") * (1 - (1 - active) ** at_once)
    read += at_once / load.attention_groups * each * token_bytes(model, load)
    weights = weights_of(model, "layers") + weights_of(model, "experts") * active
    token_s = 2 * weights / load.ranks / (speed.tflop_s * 1e12)
    step = max(read / (speed.gb_s * 1e9), at_once * token_s) + _exchange_s(
        model, load, gpus, at_once
    )
    prompt = usual.prompt * token_s + _exchange_s(model, load, gpus, usual.prompt)
    return 1 / (prompt + usual.answer * step / at_once)


def _exchange_s(model: ModelCard, load: Load, gpus: Sequence[Gpu], tokens: int) -> float:
    """Seconds of a step's all-reduces, through host memory unless NVLink connects all cards.

    Attention that each card computes alone needs none.
    """
    ranks = load.ranks
    if ranks == 1:
        return 0.0
    sent = 2 * (ranks - 1) / ranks * tokens * model.hidden_size * load.activation
    waits, gb_s = UNLINKED_S, host_link(gpus)[2]
    if all_linked(gpus):
        waits, gb_s = LINKED_S, LINKED_GB_S
    each = waits + sent / (gb_s * 1e9)
    all_reduces = ALL_REDUCES if load.attending > 1 else 1
    return all_reduces * len(model.layer_types) * each
