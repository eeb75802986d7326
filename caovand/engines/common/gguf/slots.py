"""How many requests an engine for GGUF files answers at once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import ceil

from caovand.core.facts.inventory import Gpu, Host, ModelCard
from caovand.engines.common.gguf.placement import devices, step_seconds
from caovand.engines.common.gguf.sizes import GgufLoad
from caovand.engines.common.gguf.sizing import (
    FAR_LONGER,
    NEARLY_FACTOR,
    SUFFICIENT_CONTEXT,
    PlacedLoad,
    best,
    find_longest,
    place_fixed,
)
from caovand.engines.common.gguf.weights import active_weights, tokens_computed
from caovand.engines.common.processors import read_seconds
from caovand.engines.common.speeds import BANDWIDTH_REACHED, RATE_REACHED, card_speed
from caovand.engines.common.tensors import experts_read, part_of_experts

BY_WORKLOAD = {"chat": 2, "long": 1, "batch": 8}
"""Concurrent requests for each workload; further ones wait."""
MAX_SLOTS = {"chat": 8, "long": 4, "batch": 32}
"""Concurrent requests if memory is left over."""
AS_MUCH = 0.75
"""The part of separate caches' tokens that one for all slots must hold."""
MIN_OF_BATCH = 4
"""Concurrent requests of a batch on the CPU, however slowly it computes."""


def wanted(model: ModelCard, gpus: Sequence[Gpu], host: Host, workload: str) -> int:
    """The requests of a workload; without a card no more than the cores compute."""
    many = BY_WORKLOAD[workload]
    if gpus or workload != "batch":
        return many
    return min(many, max(computed_at_once(model, (), host), MIN_OF_BATCH))


def max_slots(model: ModelCard, gpus: Sequence[Gpu], host: Host, workload: str) -> int:
    """The maximum number of requests that may have a slot if memory is left over."""
    many = BY_WORKLOAD[workload]
    if not gpus:
        return wanted(model, gpus, host, workload)
    if workload != "batch":
        return MAX_SLOTS[workload]
    return max(min(MAX_SLOTS[workload], computed_at_once(model, gpus, host)), many)


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


def fewer(load: GgufLoad) -> Iterator[GgufLoad]:
    """The load with fewer requests at once, down to one."""
    while load.slots > 1:
        load = replace(load, slots=load.slots // 2)
        yield load


def choose(
    model: ModelCard,
    host: Host,
    loads: Sequence[GgufLoad],
    gpus: Sequence[Gpu],
    rooms: Sequence[int],
    workload: str,
    most: int,
) -> PlacedLoad:
    """The best of the loads with the longest context that is worth its price, and more requests at
    once, up to `max_slots`, if memory is left over; of a batch a load with far more tokens a second
    instead, though it leaves layers in host memory."""

    @cache
    def size(load: GgufLoad) -> PlacedLoad:
        return find_longest(model, host, load, gpus, rooms, workload)

    found = _choose_quick(model, host, loads, size, gpus, rooms, workload, most)
    return _most_tokens(model, host, gpus, found, loads, size) if workload == "batch" else found


def share(
    model: ModelCard,
    host: Host,
    sized: PlacedLoad,
    gpus: Sequence[Gpu],
    rooms: Sequence[int],
    workload: str,
) -> PlacedLoad:
    """The load with one cache for all its slots, if each may then have a longer context; where
    weights are in host memory, with as many tokens as the separate caches hold."""
    limit = model.max_model_len or sized.load.context
    if sized.load.slots == 1 or sized.load.context >= limit:
        return sized
    if not gpus and not sized.fits:
        return sized  # prompts kept in host memory give way first
    load = replace(sized.load, shared=True)
    if sized.whole:
        one = find_longest(model, host, load, gpus, rooms, workload)
    else:
        load = replace(load, context=min(sized.load.context * sized.load.slots, limit))
        one = place_fixed(model, host, load, gpus, rooms)
    # No longer than the model's limit, one cache may hold far less than many.
    if one.load.context < AS_MUCH * sized.load.context * sized.load.slots:
        return sized
    quick = one.whole or (not sized.whole and one.seconds <= sized.seconds * NEARLY_FACTOR)
    return one if one.fits and quick and one.load.context > sized.load.context else sized


def choose_fixed(
    model: ModelCard,
    host: Host,
    loads: Sequence[GgufLoad],
    gpus: Sequence[Gpu],
    rooms: Sequence[int],
    workload: str,
) -> PlacedLoad:
    """The best of the loads with their own contexts."""

    @cache
    def size(load: GgufLoad) -> PlacedLoad:
        return place_fixed(model, host, load, gpus, rooms)

    found = best(loads, size)
    return _most_tokens(model, host, gpus, found, loads, size) if workload == "batch" else found


def _most_tokens(
    model: ModelCard,
    host: Host,
    gpus: Sequence[Gpu],
    chosen: PlacedLoad,
    loads: Sequence[GgufLoad],
    size: Callable[[GgufLoad], PlacedLoad],
) -> PlacedLoad:
    """The chosen load, or one with as much context that generates far more tokens a second while
    every slot is busy: the first of them that is nearly as quick as any."""
    filled = chosen.whole and chosen.load.slots >= loads[0].slots
    if not gpus or not chosen.fits or filled:
        return chosen
    context = min(chosen.load.context, SUFFICIENT_CONTEXT["batch"])
    fitting = [one for one in map(size, loads) if one.fits and one.load.context >= context]
    if not fitting:
        return chosen

    def token_s(sized: PlacedLoad) -> float:
        return _seconds_of_all(model, host, gpus, sized) / sized.load.slots

    least = min(map(token_s, fitting))
    quick = next(one for one in fitting if token_s(one) <= least * NEARLY_FACTOR)
    return quick if token_s(quick) * FAR_LONGER <= token_s(chosen) else chosen


def _seconds_of_all(model: ModelCard, host: Host, gpus: Sequence[Gpu], sized: PlacedLoad) -> float:
    """The modelled time of a step with a token of each slot, for which weights are read once."""
    many = sized.load.slots
    found = devices(model, sized.load, sized.placement)
    more = experts_read(model, many) / part_of_experts(model) - 1 if model.experts else 0.0
    busy = [
        replace(
            one,
            read=one.read + one.experts_read * more + one.cache_read * (many - 1),
            experts_read=one.experts_read * (1 + more),
        )
        for one in found
    ]
    own, weights = found[-1], sum(one.read - one.cache_read for one in found)
    computed = many / tokens_computed(model, host) * (own.read - own.cache_read) / max(weights, 1)
    read = read_seconds(host, busy[-1].read - busy[-1].experts_read, busy[-1].experts_read)
    return step_seconds(busy, gpus, host) + max(computed - read, 0.0)


def _choose_quick(
    model: ModelCard,
    host: Host,
    loads: Sequence[GgufLoad],
    size: Callable[[GgufLoad], PlacedLoad],
    gpus: Sequence[Gpu],
    rooms: Sequence[int],
    workload: str,
    most: int,
) -> PlacedLoad:
    """The load with the best time of each token, and more requests if memory is left over."""
    limit = model.max_model_len or SUFFICIENT_CONTEXT[workload]
    enough = min(SUFFICIENT_CONTEXT[workload], limit)
    found = best(loads, size, enough)
    if found.fits and found.placement.experts_in_ram and found.load.context >= enough:
        return _lengthen_context(
            found, lambda load: place_fixed(model, host, load, gpus, rooms), limit
        )
    if not (found.fits and found.whole and found.load.slots < most):
        return found
    if workload != "batch":
        return _double_requests(found, size, most)

    def has_room(load: GgufLoad) -> bool:
        sized = place_fixed(model, host, replace(load, context=enough), gpus, rooms)
        return sized.fits and sized.whole

    return size(_fill_with_requests(found.load, loads, has_room, most))


def _lengthen_context(
    sized: PlacedLoad, size: Callable[[GgufLoad], PlacedLoad], limit: int
) -> PlacedLoad:
    """Double the context while that costs hardly any time: windowed and recurrent layers make it
    cheap."""
    found = sized
    while found.load.context < limit:
        longer = size(replace(found.load, context=min(found.load.context * 2, limit)))
        if not longer.fits or longer.seconds > sized.seconds * NEARLY_FACTOR:
            break
        found = longer
    return found


def _double_requests(
    sized: PlacedLoad, size: Callable[[GgufLoad], PlacedLoad], most: int
) -> PlacedLoad:
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
    load: GgufLoad, loads: Sequence[GgufLoad], has_room: Callable[[GgufLoad], bool], most: int
) -> GgufLoad:
    """As many requests of a batch as have room for a sufficient context; with fewer bits of cache
    no more than requested, and only if they gain far more."""

    def fill(load: GgufLoad, most: int) -> GgufLoad:
        counts = range(1, most + 1)
        many = bisect_left(counts, True, key=lambda slots: not has_room(replace(load, slots=slots)))
        return replace(load, slots=max(many, 1))

    kept, wanted = loads[0].keys, loads[0].slots
    found = fill(load, most if load.keys == kept else wanted)
    others = (fill(one, wanted) for one in loads if one.slots == wanted)
    return next((one for one in others if one.slots >= found.slots * FAR_LONGER), found)
