"""The requests that a load finishes per second, by a coarse model that ranks splits over cards."""

from __future__ import annotations

from collections.abc import Sequence

from caovand.core.facts.inventory import Gpu, ModelCard
from caovand.engines.common.speeds import ALL_REDUCES, card_link, slowest, transfer_s
from caovand.engines.common.tensors import active_parameters, experts_read
from caovand.engines.common.usual_requests import USUAL_REQUESTS
from caovand.engines.sglang.memory.load import SglangLoad, token_bytes, weights_bytes
from caovand.engines.sglang.planning.workloads import Workload


def requests_a_second(
    model: ModelCard, load: SglangLoad, tokens: int, gpus: Sequence[Gpu], workload: Workload
) -> float:
    """Usual requests finished per second by cards whose cache holds `tokens`, in each group."""
    usual = USUAL_REQUESTS[workload.name]
    each = usual.cached_tokens
    users = workload.users * (load.attention_groups if workload.batch else 1)
    at_once = max(min(tokens // each * load.attention_groups, users), 1)
    speed = slowest(gpus)
    read = weights_bytes(model, load, "layers", "head")
    read += weights_bytes(model, load, "experts") * experts_read(model, at_once)
    read += at_once / load.attention_groups * each * token_bytes(model, load)
    token_s = 2 * active_parameters(model) / load.ranks / (speed.tflop_s * 1e12)
    step = max(read / (speed.gb_s * 1e9), at_once * token_s) + _exchange_s(
        model, load, gpus, at_once
    )
    prompt = usual.prompt * token_s + _exchange_s(model, load, gpus, usual.prompt)
    return 1 / (prompt + usual.answer * step / at_once)


def _exchange_s(model: ModelCard, load: SglangLoad, gpus: Sequence[Gpu], tokens: int) -> float:
    """Seconds of a step's all-reduces, through the host's memory if NVLink does not connect all
    cards.

    Attention that each card computes alone needs none.
    """
    ranks = load.ranks
    if ranks == 1:
        return 0.0
    wait_s, bytes_s = card_link([gpus])
    each = wait_s + transfer_s(ranks, bytes_s, tokens * model.hidden_size * load.activation)
    all_reduces = ALL_REDUCES if load.attending > 1 else 1
    return all_reduces * len(model.layer_types) * each
