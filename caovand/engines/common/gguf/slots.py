"""How many requests an engine of GGUF files answers at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import ceil

from caovand.core.facts.inventory import Gpu, Host, ModelCard
from caovand.engines.common.gguf.placement import part_of_experts
from caovand.engines.common.gguf.sizes import Load
from caovand.engines.common.gguf.sizing import SUFFICIENT_CONTEXT, Sized
from caovand.engines.common.processors import core_of, read_seconds
from caovand.engines.common.speeds import BANDWIDTH_REACHED, RATE_REACHED, card_speed

BY_WORKLOAD = {"chat": 2, "long": 1, "batch": 8}
"""Requests at once for each workload; further ones wait."""
MAX = {"chat": 8, "long": 4, "batch": 32}
"""The same where memory is left over."""
MIN_OF_BATCH = 2
"""Requests of a batch on a processor, however slowly it computes."""
BITS = {
    "F32": 32, "F16": 16, "BF16": 16, "Q8_0": 8.5, "Q6_K": 6.56, "Q5_K": 5.5, "Q5_0": 5.5,
    "Q5_1": 6, "Q4_K": 4.5, "Q4_0": 4.5, "Q4_1": 5, "Q3_K": 3.44, "Q2_K": 2.63, "IQ4_XS": 4.25,
    "IQ4_NL": 4.5, "MXFP4": 4.25, "IQ3_S": 3.44, "IQ3_XXS": 3.06, "IQ2_XXS": 2.06,
}  # fmt: skip


def wanted(model: ModelCard, gpus: Sequence[Gpu], host: Host, workload: str) -> int:
    """The requests of a workload, without a card no more than its cores compute."""
    many = BY_WORKLOAD[workload]
    if gpus or workload != "batch":
        return many
    return min(many, max(computed_at_once(model, (), host), MIN_OF_BATCH))


def most(model: ModelCard, gpus: Sequence[Gpu], host: Host, workload: str) -> int:
    """As many requests as may have a slot where memory is left over."""
    many = BY_WORKLOAD[workload]
    if not gpus:
        return wanted(model, gpus, host, workload)
    if workload != "batch":
        return MAX[workload]
    return max(min(MAX[workload], computed_at_once(model, gpus, host)), many)


def computed_at_once(model: ModelCard, gpus: Sequence[Gpu], host: Host) -> int:
    """The tokens that are multiplied with the weights in the time that reading them takes: more at
    once take longer in proportion."""
    assert model.gguf is not None
    multiplied = max(2 * active_weights(model), 1.0)
    if gpus:
        speeds = [card_speed(gpu) for gpu in gpus]
        read = model.gguf.size / BANDWIDTH_REACHED
        many = min(
            read * speed.tflop_s * RATE_REACHED * 1e3 / (speed.gb_s * multiplied)
            for speed in speeds
        )
    else:
        experts = sum(layer.expert_size for layer in model.gguf.layers)
        seconds = read_seconds(host, model.gguf.size - experts, experts * part_of_experts(model))
        many = seconds * host.cpus * core_of(host).gflop_s * 1e9 / multiplied
    return ceil(many)


def fewer(load: Load) -> Iterator[Load]:
    """The load with fewer requests at once, down to one."""
    while load.slots > 1:
        load = replace(load, slots=load.slots // 2)
        yield load


def grow(sized: Sized, size: Callable[[Load], Sized], most: int, workload: str) -> Sized:
    """Twice as many requests, and again, as long as everything stays on the cards: of a batch if
    each keeps a sufficient context, of other workloads if each keeps all of it."""
    found, context = sized, sized.load.context
    enough = min(SUFFICIENT_CONTEXT["batch"], context) if workload == "batch" else context
    while found.fits and found.whole and found.load.slots * 2 <= most:
        more = size(replace(found.load, slots=found.load.slots * 2))
        if not (more.fits and more.whole and more.load.context >= enough):
            break
        found = more
    return found


def active_weights(model: ModelCard) -> float:
    """Weights that a token multiplies with."""
    if model.gguf is None:
        return 0.0
    bits = 8 * model.gguf.size / max(_weights(model), 1)
    rest = 1 - part_of_experts(model)
    size = sum(
        layer.size - layer.expert_size * rest for layer in model.gguf.layers if not layer.mtp
    )
    return (size + model.gguf.output) * 8 / max(bits, 1.0)


def _weights(model: ModelCard) -> float:
    """The number of weights, by the bits of each type."""
    assert model.gguf is not None
    return sum(size * 8 / BITS.get(name, 4.5) for name, size in model.gguf.types)
