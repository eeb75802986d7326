"""How many requests an engine for GGUF files answers at once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import ceil

from caovand.core.facts.inventory import Gpu, Host, ModelCard
from caovand.engines.common.gguf.sizes import Load
from caovand.engines.common.gguf.sizing import (
    FAR_LONGER,
    NEARLY,
    SUFFICIENT_CONTEXT,
    SizedLoad,
    best,
    find_longest,
    place_fixed,
)
from caovand.engines.common.gguf.weights import active_weights, tokens_computed
from caovand.engines.common.processors import read_seconds
from caovand.engines.common.speeds import BANDWIDTH_REACHED, RATE_REACHED, card_speed
from caovand.engines.common.tensors import part_of_experts

BY_WORKLOAD = {"chat": 2, "long": 1, "batch": 8}
"""Concurrent requests for each workload; further ones wait."""
MAX = {"chat": 8, "long": 4, "batch": 32}
"""Concurrent requests if memory is left over."""
MIN_OF_BATCH = 4
"""Concurrent requests of a batch on the CPU, however slowly it computes."""


def wanted(model: ModelCard, gpus: Sequence[Gpu], host: Host, workload: str) -> int:
    """The requests of a workload; without a card no more than the cores compute."""
    many = BY_WORKLOAD[workload]
    if gpus or workload != "batch":
        return many
    return min(many, max(computed_at_once(model, (), host), MIN_OF_BATCH))


def most(model: ModelCard, gpus: Sequence[Gpu], host: Host, workload: str) -> int:
    """The maximum number of requests that may have a slot if memory is left over."""
    many = BY_WORKLOAD[workload]
    if not gpus:
        return wanted(model, gpus, host, workload)
    if workload != "batch":
        return MAX[workload]
    return max(min(MAX[workload], computed_at_once(model, gpus, host)), many)


def computed_at_once(model: ModelCard, gpus: Sequence[Gpu], host: Host) -> int:
    """The number of tokens multiplied with the weights in the time of reading them: more at once
    take proportionally longer."""
    assert model.gguf is not None
    if gpus:
        multiplied = max(2 * active_weights(model), 1.0)
        speeds = [card_speed(gpu) for gpu in gpus]
        read = model.gguf.size / BANDWIDTH_REACHED
        many = min(
            read * speed.tflop_s * RATE_REACHED * 1e3 / (speed.gb_s * multiplied)
            for speed in speeds
        )
    else:
        experts = sum(layer.expert_size for layer in model.gguf.layers)
        seconds = read_seconds(host, model.gguf.size - experts, experts * part_of_experts(model))
        many = seconds * tokens_computed(model, host)
    return ceil(many)


def fewer(load: Load) -> Iterator[Load]:
    """The load with fewer requests at once, down to one."""
    while load.slots > 1:
        load = replace(load, slots=load.slots // 2)
        yield load


def choose(
    model: ModelCard,
    host: Host,
    loads: Sequence[Load],
    gpus: Sequence[Gpu],
    rooms: Sequence[int],
    workload: str,
    most: int,
) -> SizedLoad:
    """The best of the loads with the longest context that is worth its price, and more requests at
    once, up to `most`, if memory is left over."""
    limit = model.max_model_len or SUFFICIENT_CONTEXT[workload]
    enough = min(SUFFICIENT_CONTEXT[workload], limit)

    def size(load: Load) -> SizedLoad:
        return find_longest(model, host, load, gpus, rooms, workload)

    found = best(loads, size, enough)
    if found.fits and found.placement.experts_in_ram and found.load.context >= enough:
        return _lengthen_context(
            found, lambda load: place_fixed(model, host, load, gpus, rooms), limit
        )
    if not (found.fits and found.whole and found.load.slots < most):
        return found
    if workload != "batch":
        return _double_requests(found, size, most)

    def has_room(load: Load) -> bool:
        sized = place_fixed(model, host, replace(load, context=enough), gpus, rooms)
        return sized.fits and sized.whole

    return size(_fill_with_requests(found.load, loads, has_room, most))


def _lengthen_context(sized: SizedLoad, size: Callable[[Load], SizedLoad], limit: int) -> SizedLoad:
    """Double the context while that costs hardly any time: windowed and recurrent layers make it
    cheap."""
    found = sized
    while found.load.context < limit:
        longer = size(replace(found.load, context=min(found.load.context * 2, limit)))
        if not longer.fits or longer.seconds > sized.seconds * NEARLY:
            break
        found = longer
    return found


def _double_requests(sized: SizedLoad, size: Callable[[Load], SizedLoad], most: int) -> SizedLoad:
    """The load with requests doubled as long as everything stays on the cards and each keeps its
    context."""
    found, context = sized, sized.load.context
    while found.load.slots * 2 <= most:
        more = size(replace(found.load, slots=found.load.slots * 2))
        if not (more.fits and more.whole and more.load.context >= context):
            break
        found = more
    return found


def _fill_with_requests(
    load: Load, loads: Sequence[Load], has_room: Callable[[Load], bool], most: int
) -> Load:
    """As many requests of a batch as have room for a sufficient context; with fewer bits of cache
    no more than requested, and only if they gain far more."""

    def fill(load: Load, most: int) -> Load:
        counts = range(1, most + 1)
        many = bisect_left(counts, True, key=lambda slots: not has_room(replace(load, slots=slots)))
        return replace(load, slots=max(many, 1))

    kept, wanted = loads[0].keys, loads[0].slots
    found = fill(load, most if load.keys == kept else wanted)
    others = (fill(one, wanted) for one in loads if one.slots == wanted)
    return next((one for one in others if one.slots >= found.slots * FAR_LONGER), found)
