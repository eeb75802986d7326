"""The number of requests that an engine for GGUF files answers at once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import ceil

from caovand.engines.common.gguf.placement import devices, step_seconds
from caovand.engines.common.gguf.sizes import GgufLoad
from caovand.engines.common.gguf.sizing import (
    FAR_LONGER,
    NEARLY_FACTOR,
    LoadSizer,
    PlacedLoad,
    best,
)
from caovand.engines.common.gguf.weights import active_weights, tokens_computed
from caovand.engines.common.processors import read_seconds
from caovand.engines.common.speeds import BANDWIDTH_REACHED, RATE_REACHED, card_speed
from caovand.engines.common.tensors import experts_read, part_of_experts

MIN_SHARED = 0.75
"""The part of separate caches' tokens that one cache for all slots must hold."""
MIN_OF_BATCH = 4
"""Concurrent requests of a batch on the CPU, however slowly it computes."""


def usual_slots(sizer: LoadSizer) -> int:
    """The requests of a workload; without a card no more than the cores compute."""
    slots = sizer.workload.slots
    if sizer.gpus or not sizer.workload.batch:
        return slots
    return min(slots, max(computed_at_once(sizer), MIN_OF_BATCH))


def max_slots(sizer: LoadSizer) -> int:
    """The maximum number of requests that may have a slot if memory is left over."""
    workload = sizer.workload
    if not sizer.gpus:
        return usual_slots(sizer)
    if not workload.batch:
        return workload.max_slots
    return max(min(workload.max_slots, computed_at_once(sizer)), workload.slots)


def computed_at_once(sizer: LoadSizer) -> int:
    """The number of tokens multiplied with the weights in the time of reading them: more at once
    take proportionally longer."""
    model, host = sizer.model, sizer.host
    assert model.gguf is not None
    if sizer.gpus:
        multiplied = max(2 * active_weights(model), 1.0)
        read = model.gguf.size / BANDWIDTH_REACHED
        tokens = min(
            read * speed.tflop_s * RATE_REACHED * 1e3 / (speed.gb_s * multiplied)
            for speed in map(card_speed, sizer.gpus)
        )
    else:
        experts = sum(layer.expert_size for layer in model.gguf.layers)
        seconds = read_seconds(host, model.gguf.size - experts, experts * part_of_experts(model))
        tokens = seconds * tokens_computed(model, host)
    return ceil(tokens)


def halve_slots(load: GgufLoad) -> Iterator[GgufLoad]:
    """The load with ever fewer requests at once, down to one."""
    while load.slots > 1:
        load = replace(load, slots=load.slots // 2)
        yield load


def choose(sizer: LoadSizer, loads: Sequence[GgufLoad], most: int) -> PlacedLoad:
    """The best of the loads with the longest context that is worth its price, and more requests at
    once, up to `most`, if memory is left over; of a batch a load with far more tokens a second
    instead, though it leaves layers in host memory."""
    size = cache(sizer.find_longest)
    chosen = _choose_quick(sizer, loads, size, most)
    return _most_tokens(sizer, chosen, loads, size) if sizer.workload.batch else chosen


def choose_fixed(sizer: LoadSizer, loads: Sequence[GgufLoad]) -> PlacedLoad:
    """The best of the loads with their own contexts."""
    size = cache(sizer.place)
    chosen = best(loads, size)
    return _most_tokens(sizer, chosen, loads, size) if sizer.workload.batch else chosen


def share_cache(sizer: LoadSizer, separate: PlacedLoad) -> PlacedLoad:
    """The load with one cache for all its slots, if each may then have a longer context; where
    weights are in host memory, with as many tokens as the separate caches hold."""
    context, slots = separate.load.context, separate.load.slots
    limit = sizer.model.max_model_len or context
    if slots == 1 or context >= limit:
        return separate
    if not sizer.gpus and not separate.fits:
        return separate  # prompts kept in host memory give way first
    load = replace(separate.load, shared=True)
    if separate.whole:
        shared = sizer.find_longest(load)
    else:
        shared = sizer.place(replace(load, context=min(context * slots, limit)))
    # No longer than the model's limit, one cache may hold far less than many.
    if shared.load.context < MIN_SHARED * context * slots:
        return separate
    slower = shared.seconds > separate.seconds * NEARLY_FACTOR
    quick = shared.whole or not (separate.whole or slower)
    return shared if shared.fits and quick and shared.load.context > context else separate


def _most_tokens(
    sizer: LoadSizer,
    chosen: PlacedLoad,
    loads: Sequence[GgufLoad],
    size: Callable[[GgufLoad], PlacedLoad],
) -> PlacedLoad:
    """The chosen load, or one with as much context that generates far more tokens a second while
    every slot is busy: the first of them that is nearly as quick as any."""
    filled = chosen.whole and chosen.load.slots >= loads[0].slots
    if not sizer.gpus or not chosen.fits or filled:
        return chosen
    context = min(chosen.load.context, sizer.workload.sufficient_context)
    fitting = [sized for sized in map(size, loads) if sized.fits and sized.load.context >= context]
    if not fitting:
        return chosen

    def token_s(sized: PlacedLoad) -> float:
        return _busy_step_seconds(sizer, sized) / sized.load.slots

    least = min(map(token_s, fitting))
    quick = next(sized for sized in fitting if token_s(sized) <= least * NEARLY_FACTOR)
    return quick if token_s(quick) * FAR_LONGER <= token_s(chosen) else chosen


def _busy_step_seconds(sizer: LoadSizer, sized: PlacedLoad) -> float:
    """The modelled time of a step with a token of each slot, for which weights are read once."""
    model, host, slots = sizer.model, sizer.host, sized.load.slots
    idle = devices(model, sized.load, sized.placement)
    more = experts_read(model, slots) / part_of_experts(model) - 1 if model.experts else 0.0
    busy = [
        replace(
            device,
            read=device.read + device.experts_read * more + device.cache_read * (slots - 1),
            experts_read=device.experts_read * (1 + more),
        )
        for device in idle
    ]
    of_host, weights = idle[-1], sum(device.read - device.cache_read for device in idle)
    part = (of_host.read - of_host.cache_read) / max(weights, 1)
    computed = slots / tokens_computed(model, host) * part
    read = read_seconds(host, busy[-1].read - busy[-1].experts_read, busy[-1].experts_read)
    return step_seconds(busy, sizer.gpus, host) + max(computed - read, 0.0)


def _choose_quick(
    sizer: LoadSizer,
    loads: Sequence[GgufLoad],
    size: Callable[[GgufLoad], PlacedLoad],
    most: int,
) -> PlacedLoad:
    """The load with the best time of each token, and more requests if memory is left over."""
    sufficient = sizer.workload.sufficient_context
    limit = sizer.model.max_model_len or sufficient
    enough = min(sufficient, limit)
    chosen = best(loads, size, enough)
    if chosen.fits and chosen.placement.experts_in_ram and chosen.load.context >= enough:
        return _lengthen_context(sizer, chosen, limit)
    if not (chosen.fits and chosen.whole and chosen.load.slots < most):
        return chosen
    if not sizer.workload.batch:
        return _double_requests(chosen, size, most)

    def has_room(load: GgufLoad) -> bool:
        sized = sizer.place(replace(load, context=enough))
        return sized.fits and sized.whole

    return size(_fill_with_requests(chosen.load, loads, has_room, most))


def _lengthen_context(sizer: LoadSizer, sized: PlacedLoad, limit: int) -> PlacedLoad:
    """Double the context while that costs hardly any time: windowed and recurrent layers make it
    cheap."""
    longest = sized
    while longest.load.context < limit:
        longer = sizer.place(replace(sized.load, context=min(longest.load.context * 2, limit)))
        if not longer.fits or longer.seconds > sized.seconds * NEARLY_FACTOR:
            break
        longest = longer
    return longest


def _double_requests(
    sized: PlacedLoad, size: Callable[[GgufLoad], PlacedLoad], most: int
) -> PlacedLoad:
    """The load with requests doubled as long as everything stays on the cards and each keeps its
    context."""
    largest, context = sized, sized.load.context
    while largest.load.slots * 2 <= most:
        more = size(replace(largest.load, slots=largest.load.slots * 2))
        if not (more.fits and more.whole and more.load.context >= context):
            break
        largest = more
    return largest


def _fill_with_requests(
    load: GgufLoad, loads: Sequence[GgufLoad], has_room: Callable[[GgufLoad], bool], most: int
) -> GgufLoad:
    """As many requests of a batch as have room for a sufficient context; with a lower-bit
    cache no more than requested, and only if they gain far more."""

    def fill(load: GgufLoad, most: int) -> GgufLoad:
        counts = range(1, most + 1)
        slots = bisect_left(counts, True, key=lambda many: not has_room(replace(load, slots=many)))
        return replace(load, slots=max(slots, 1))

    preferred = loads[0]
    filled = fill(load, most if load.keys == preferred.keys else preferred.slots)
    others = (fill(other, preferred.slots) for other in loads if other.slots == preferred.slots)
    return next((o for o in others if o.slots >= filled.slots * FAR_LONGER), filled)
