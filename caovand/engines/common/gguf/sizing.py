"""Context, slots and placement: the fastest combination that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from caovand.core.facts.inventory import Gpu, Host, ModelCard
from caovand.core.units import MIB
from caovand.engines.common.gguf.placement import (
    CONTEXT_MIB,
    Placement,
    devices,
    fits,
    host_room,
    place,
    step_seconds,
)
from caovand.engines.common.gguf.sizes import CELLS, GgufLoad
from caovand.engines.common.gguf.weights import tokens_computed

FILLED = {"chat": 4096, "long": 32768, "batch": 2048}
"""Tokens of context for which a workload's time is modelled."""
SUFFICIENT_CONTEXT = {"chat": 16384, "long": 131072, "batch": 8192}
"""A context for which layers may leave the cards; a longer one is used only if it costs nothing."""
USEFUL = 8192
"""The shortest context that is chosen to keep every layer on the cards."""
MIN_CONTEXT = 2048
NEARLY_FACTOR = 1.1
"""A tenth of the time saved does not justify half the requests, half the context, or fewer bits in
the cache."""
FAR_LONGER = 1.4
"""How many times longer the context must become to justify a cache of fewer bits, or half the
requests; for a batch, how many times more requests justify a cache of fewer bits."""
MAX_ON_HOST = 32768
"""The longest context chosen without a card, unless a workload needs more."""
READING_S = 3600
"""Modelled seconds in which the CPU reads the longest prompt; most prompts take half as long."""


@dataclass(frozen=True)
class PlacedLoad:
    """The chosen load, its placement, and whether it fits."""

    load: GgufLoad
    placement: Placement
    fits: bool
    seconds: float
    whole: bool


def rooms_of(gpus: Sequence[Gpu], share: float | None) -> list[int]:
    """Usable bytes of each card."""
    return [
        (min(gpu.free_mib, int(gpu.total_mib * share)) if share else int(gpu.free_mib * 0.97)) * MIB
        for gpu in gpus
    ]


def place_fixed(
    model: ModelCard, host: Host, load: GgufLoad, gpus: Sequence[Gpu], rooms: Sequence[int]
) -> PlacedLoad:
    """The best placement of one load."""
    usable = [room for room in rooms if room > CONTEXT_MIB * MIB]
    placement = place(model, load, gpus, host, rooms) if usable else Placement()
    found = devices(model, load, placement)
    units = len(model.gguf.layers) + 1 if model.gguf else 1
    whole = placement.layers == units and not placement.experts_in_ram
    room = host_room(host, gpus)
    seconds = step_seconds(found, gpus, host)
    return PlacedLoad(load, placement, fits(found, rooms, room), seconds, whole or not gpus)


def find_longest(
    model: ModelCard,
    host: Host,
    load: GgufLoad,
    gpus: Sequence[Gpu],
    rooms: Sequence[int],
    workload: str,
) -> PlacedLoad:
    """The load with the longest context that is worth its price.

    The longest with which every layer fits the cards; else at most `SUFFICIENT_CONTEXT`, for which
    layers may leave them. On the CPU the longest that fits its memory, up to MAX_ON_HOST.
    """
    limit = model.max_model_len or MAX_ON_HOST
    enough = min(SUFFICIENT_CONTEXT[workload], limit)
    if not gpus:
        enough = min(enough, longest_on_host(model, host, enough))
    top = limit if gpus else longest_on_host(model, host, enough)

    def at(context: int) -> PlacedLoad:
        return place_fixed(model, host, replace(load, context=context), gpus, rooms)

    least = at(min(MIN_CONTEXT, limit))
    goal = at(enough)
    if gpus and goal.whole and goal.fits:
        return max_context(at, enough, top, lambda one: one.fits and one.whole)
    useful = at(min(USEFUL, enough))
    if gpus and useful.whole and useful.fits:
        return max_context(at, useful.load.context, enough, lambda one: one.fits and one.whole)
    if goal.fits:
        return goal if gpus or top <= enough else max_context(at, enough, top, lambda one: one.fits)
    if not least.fits:
        return least
    return max_context(at, least.load.context, enough, lambda one: one.fits)


def longest_on_host(model: ModelCard, host: Host, enough: int) -> int:
    """The longest context without a card: its cores read it in READING_S."""
    limit = model.max_model_len or MAX_ON_HOST
    read = tokens_computed(model, host) * READING_S // CELLS * CELLS
    return int(min(limit, max(USEFUL, min(read, max(MAX_ON_HOST, enough)))))


def best(
    loads: Sequence[GgufLoad], size: Callable[[GgufLoad], PlacedLoad], enough: int = 0
) -> PlacedLoad:
    """The first load with every layer on the cards and a context of `enough` tokens, or one with
    more requests that nearly has it; else the first such load that no later one exceeds by far;
    else the first that is nearly as fast as any that fits, or the first."""
    found: list[PlacedLoad] = []
    for load in loads:
        sized = size(load)
        if sized.fits and sized.whole and sized.load.context >= enough:
            return next((one for one in found if _serves_more(one, sized, enough)), sized)
        found.append(sized)
    fitting = [sized for sized in found if sized.fits]
    if whole := [sized for sized in fitting if sized.whole]:
        longest = whole[0]
        for sized in whole[1:]:
            if sized.load.context >= longest.load.context * FAR_LONGER:
                longest = sized
        return longest
    quickest = min((sized.seconds for sized in fitting), default=0.0)
    return next((one for one in fitting if one.seconds <= quickest * NEARLY_FACTOR), found[0])


def _serves_more(one: PlacedLoad, than: PlacedLoad, enough: int) -> bool:
    """Whether a load has more requests at once, and nearly enough context for each."""
    nearly = one.fits and one.whole and one.load.context * NEARLY_FACTOR >= enough
    return nearly and one.load.slots > than.load.slots


def max_context(
    at: Callable[[int], PlacedLoad], low: int, high: int, good: Callable[[PlacedLoad], bool]
) -> PlacedLoad:
    """The longest context from `low`, which fits, to `high`, in steps of CELLS."""
    found, whole = at(low), at(high)
    if good(whole):
        return whole
    low, high = low // CELLS, high // CELLS
    while high - low > 1:
        middle = (low + high) // 2
        longer = at(middle * CELLS)
        if good(longer):
            low, found = middle, longer
        else:
            high = middle
    return found
