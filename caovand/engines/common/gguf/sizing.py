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
    host_budget,
    place,
    step_seconds,
)
from caovand.engines.common.gguf.sizes import CELLS, GgufLoad
from caovand.engines.common.gguf.weights import tokens_computed

USEFUL_CONTEXT = 8192
"""The shortest context that is chosen to keep every layer on the cards."""
MIN_CONTEXT = 2048
NEARLY_FACTOR = 1.1
"""A tenth of the time does not justify half the requests, half the context or a lower-bit cache."""
FAR_LONGER = 1.4
"""The factor by which a lower-bit cache, or half the requests, must lengthen the context; for a
batch, the factor by which a lower-bit cache must raise the number of requests."""
MAX_ON_HOST = 32768
"""The longest context chosen without a card, unless a workload needs more."""
READING_S = 3600
"""Modelled seconds in which the CPU reads the longest prompt; most prompts take half as long."""


@dataclass(frozen=True)
class Workload:
    """The needs that a load is sized for.

    Time is modelled for a context of `filled` tokens. Layers may leave the cards for the
    `sufficient_context`; a longer one is used only if it costs nothing. `slots` requests are
    answered at once, further ones wait; up to `max_slots` are if memory is left over.
    """

    filled: int
    sufficient_context: int
    slots: int
    max_slots: int
    batch: bool = False


WORKLOADS = {
    "chat": Workload(filled=4096, sufficient_context=16384, slots=2, max_slots=8),
    "long": Workload(filled=32768, sufficient_context=131072, slots=1, max_slots=4),
    "batch": Workload(filled=2048, sufficient_context=8192, slots=8, max_slots=32, batch=True),
}


@dataclass(frozen=True)
class PlacedLoad:
    """The chosen load, its placement, and whether it fits.

    `seconds` are those of a step, modelled. `whole`: every layer is on the cards, or there are no
    cards.
    """

    load: GgufLoad
    placement: Placement
    fits: bool
    seconds: float
    whole: bool


def card_budgets(gpus: Sequence[Gpu], share: float | None) -> list[int]:
    """Usable bytes of each card: `share` of its memory, else nearly all that is free."""
    return [
        (min(gpu.free_mib, int(gpu.total_mib * share)) if share else int(gpu.free_mib * 0.97)) * MIB
        for gpu in gpus
    ]


@dataclass(frozen=True)
class LoadSizer:
    """Sizes loads of one model for one machine and workload.

    `budgets` are the usable bytes of each card.
    """

    model: ModelCard
    host: Host
    gpus: Sequence[Gpu]
    budgets: Sequence[int]
    workload: Workload

    def place(self, load: GgufLoad) -> PlacedLoad:
        """The best placement of one load."""
        model, host, gpus = self.model, self.host, self.gpus
        usable = any(budget > CONTEXT_MIB * MIB for budget in self.budgets)
        placement = place(model, load, gpus, host, self.budgets) if usable else Placement()
        placed = devices(model, load, placement)
        units = len(model.gguf.layers) + 1 if model.gguf else 1
        whole = placement.layers == units and not placement.experts_in_ram
        fitting = fits(placed, self.budgets, host_budget(host, gpus))
        seconds = step_seconds(placed, gpus, host)
        return PlacedLoad(load, placement, fitting, seconds, whole or not gpus)

    def find_longest(self, load: GgufLoad) -> PlacedLoad:
        """The load with the longest context that is worth its price.

        The longest with which every layer fits the cards; else at most the workload's sufficient
        one, for which layers may leave them. On the CPU the longest that fits its memory, up to
        MAX_ON_HOST.
        """
        on_cards, limit = bool(self.gpus), self.model.max_model_len or MAX_ON_HOST
        enough = min(self.workload.sufficient_context, limit)
        if not on_cards:
            enough = min(enough, self.longest_on_host(enough))
        top = limit if on_cards else self.longest_on_host(enough)

        def at(context: int) -> PlacedLoad:
            return self.place(replace(load, context=context))

        least = at(min(MIN_CONTEXT, limit))
        goal = at(enough)
        if on_cards and goal.whole and goal.fits:
            return max_context(at, enough, top, whole=True)
        useful = at(min(USEFUL_CONTEXT, enough))
        if on_cards and useful.whole and useful.fits:
            return max_context(at, useful.load.context, enough, whole=True)
        if goal.fits:
            return goal if on_cards or top <= enough else max_context(at, enough, top)
        return max_context(at, least.load.context, enough) if least.fits else least

    def longest_on_host(self, enough: int) -> int:
        """The longest context without a card: its cores read it in READING_S."""
        limit = self.model.max_model_len or MAX_ON_HOST
        readable = tokens_computed(self.model, self.host) * READING_S // CELLS * CELLS
        return int(min(limit, max(USEFUL_CONTEXT, min(readable, max(MAX_ON_HOST, enough)))))


def best(
    loads: Sequence[GgufLoad], size: Callable[[GgufLoad], PlacedLoad], enough: int = 0
) -> PlacedLoad:
    """The first load with every layer on the cards and a context of `enough` tokens, or one with
    more requests that nearly has it; else the first such load that no later one exceeds by far;
    else the first that is nearly as fast as any that fits, or the first."""
    candidates: list[PlacedLoad] = []
    for load in loads:
        sized = size(load)
        if sized.fits and sized.whole and sized.load.context >= enough:
            more = (earlier for earlier in candidates if _serves_more(earlier, sized, enough))
            return next(more, sized)
        candidates.append(sized)
    fitting = [sized for sized in candidates if sized.fits]
    if whole := [sized for sized in fitting if sized.whole]:
        longest = whole[0]
        for sized in whole[1:]:
            if sized.load.context >= longest.load.context * FAR_LONGER:
                longest = sized
        return longest
    quickest = min((sized.seconds for sized in fitting), default=0.0)
    quick = (sized for sized in fitting if sized.seconds <= quickest * NEARLY_FACTOR)
    return next(quick, candidates[0])


def _serves_more(sized: PlacedLoad, than: PlacedLoad, enough: int) -> bool:
    """Whether a load has more requests at once, and nearly enough context for each."""
    nearly = sized.fits and sized.whole and sized.load.context * NEARLY_FACTOR >= enough
    return nearly and sized.load.slots > than.load.slots


def max_context(
    at: Callable[[int], PlacedLoad], low: int, high: int, *, whole: bool = False
) -> PlacedLoad:
    """The longest context that fits, with every layer on the cards if `whole`, in steps of CELLS.

    It is searched from `low`, which fits, to `high`.
    """

    def good(sized: PlacedLoad) -> bool:
        return sized.fits and (sized.whole or not whole)

    longest, goal = at(low), at(high)
    if good(goal):
        return goal
    low, high = low // CELLS, high // CELLS
    while high - low > 1:
        middle = (low + high) // 2
        sized = at(middle * CELLS)
        if good(sized):
            low, longest = middle, sized
        else:
            high = middle
    return longest
