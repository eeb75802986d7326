"""The search for the best way of running: every one that is open is weighed by its time.

Every way that the operator leaves open is weighed by its modelled time for a token of the workload
(`pace`), each with the longest context that it holds, and the best of those that fit is taken. The
share leaves a reserve that grows with the context, and the context is what the share leaves room
for. A way's longest context is found only while the way may win: its score with the longest context
that it might have bounds the one that it has. Weights go to host memory only if no way holds a
usual prompt.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from math import ceil

from caovand.core.facts.inventory import Gpu, ModelCard
from caovand.engines.vllm.memory.candidate import MIB, Load, free_share, utilization
from caovand.engines.vllm.memory.estimate import (
    granular,
    kv_bytes,
    lacking_gib,
    lacks_states,
    longest_context,
    room_for_context,
)
from caovand.engines.vllm.memory.kv_cache import layout_for
from caovand.engines.vllm.memory.steps import DRAFTING_SAMPLER_BYTES
from caovand.engines.vllm.sizing.pace import Pace
from caovand.engines.vllm.sizing.space import Rival, Sizing, Wishes

SMALLEST_CONTEXT = 512
"""The smallest context worth starting with."""
BATCHES = GENEROUS_BATCH, MODEST_BATCH, LEAN_BATCH = 8192, 2048, 512
SAMPLER_SHARE = 0.02
MAX_SEQUENCES, TURING_SEQUENCES = 256, 8
USUAL_SEQUENCES = 2
"""So many are let in even where the cache holds fewer whole contexts: few are as long."""


def sequences_for(model: ModelCard, gpus: Sequence[Gpu], turing: bool) -> int:
    """How many sequences these cards decode at once at most where nobody said."""
    if turing:
        return TURING_SEQUENCES
    card = min(gpu.total_mib for gpu in gpus) * MIB
    each = max(model.vocab_size, 1) * DRAFTING_SAMPLER_BYTES
    count = MAX_SEQUENCES
    while count > 1 and count * each > SAMPLER_SHARE * card:
        count //= 2
    return count


class Search:
    """Looks for the best way among all; a way's longest context is found only while it may win."""

    def __init__(
        self, bases: Sequence[Load], model: ModelCard, gpus: Sequence[Gpu], wishes: Wishes
    ) -> None:
        self._bases, self._model, self._gpus, self._wishes = bases, model, gpus, wishes
        self._least = min(SMALLEST_CONTEXT, model.max_model_len)
        eager = wishes.eager or bases[0].eager
        self.eager = (True,) if eager else (False,) if wishes.graphs else (False, True)
        self._ceilings: dict[tuple[int, bool], int] = {}

    @cached_property
    def _paces(self) -> list[Pace]:
        asked = self._wishes.workload, self._wishes.nodes
        return [Pace(self._model, one, self._gpus, *asked) for one in self._bases]

    def lean(self, base: Load, *, eager: bool) -> Load:
        """The way that takes the least memory, but for weights."""
        wishes = self._wishes
        small = self._batches(base)[-1]
        return base.but(sequences=wishes.sequences or 1, batch_tokens=small, eager=eager)

    def best(self, eager: tuple[bool, ...]) -> tuple[int, Sizing] | None:
        """The way with the lowest score and its rival, None where nothing fits.

        A way's score with the longest context that it might have bounds the one that it has.
        """
        limit = self._wishes.context or self._model.max_model_len
        queue = []
        for order, (base, way) in enumerate(self._ways(eager)):
            bound = self._paces[base].score(way, limit)
            queue.append((bound, order, base, way, False))
        heapq.heapify(queue)
        first: tuple[float, int, Load] | None = None
        while queue:
            bound, order, base, way, measured = heapq.heappop(queue)
            if measured and first is None:
                first = bound, base, way
                if self._wishes.context or way.context >= limit:
                    break
            elif measured and first and _kind(way, base) != _kind(first[2], first[1]):
                return self._sizing(first, (bound, base, way))
            elif not measured:
                sized = self._sized(base, way)
                if sized:
                    entry = self._paces[base].score(sized), order, base, sized, True
                    heapq.heappush(queue, entry)
        return self._sizing(first, None) if first else None

    def _ways(self, eager: tuple[bool, ...]) -> Iterator[tuple[int, Load]]:
        for number, base in enumerate(self._bases):
            batches, counts = self._batches(base), self._counts(base)
            for batch in batches:
                for count in (one for one in counts if one <= batch or self._wishes.sequences):
                    for graphless in eager:
                        way = base.but(sequences=count, batch_tokens=batch, eager=graphless)
                        yield number, way

    def _batches(self, base: Load) -> tuple[int, ...]:
        if self._wishes.batch_tokens:
            return (self._wishes.batch_tokens,)
        least = self._wishes.sequences or 1  # each takes a token of every step
        sizes = (max(batch_of(size, base, self._model), least) for size in BATCHES)
        return tuple(dict.fromkeys(sizes))

    def _counts(self, base: Load) -> tuple[int, ...]:
        """Sequences that may be let in, most first."""
        if self._wishes.sequences:
            return (self._wishes.sequences,)
        most = min(sequences_for(self._model, self._gpus, base.turing), self._batches(base)[0])
        if base.turing:
            return tuple(range(most, 0, -1))
        halves = [most >> shift for shift in range(most.bit_length())]
        return tuple(halves)

    def _sized(self, base: int, way: Load) -> Load | None:
        """The way with its context, None where it holds none or not its sequences."""
        wishes, ceiling = self._wishes, self._ceiling(base, way)
        if not ceiling:
            return None
        if wishes.context:
            sized = at(way, wishes.context, self._gpus, wishes)
            # What was asked for may fill the cache to the brim; what we choose leaves a little.
            if not holds(sized, self._model, self._gpus):
                return None
        else:
            context = longest(way, self._model, self._gpus, wishes)
            if context < self._least:
                return None
            sized = at(way, context, self._gpus, wishes)
        if lacks_states(self._model, sized, self._gpus):
            return None
        asked = wishes.sequences or sized.sequences <= USUAL_SEQUENCES
        return sized if asked or sized.sequences <= self._room(sized) else None

    def _room(self, load: Load) -> float:
        """Sequences that the cache holds: of Turing whole ones, whose few users chat long."""
        usual = load.context if load.turing else min(load.context, self._wishes.workload.length)
        available = int(kv_bytes(self._model, load, self._gpus))
        return layout_for(self._model, load).concurrency(available, usual)

    def _ceiling(self, base: int, way: Load) -> int:
        """The longest context of the leanest way like this one; 0 for none."""
        if (base, way.eager) not in self._ceilings:
            lean = self.lean(self._bases[base], eager=way.eager)
            context = longest(lean, self._model, self._gpus, self._wishes)
            if self._wishes.context:
                context = self._wishes.context
            self._ceilings[base, way.eager] = context if context >= self._least else 0
        return self._ceilings[base, way.eager]

    def _sizing(
        self, first: tuple[float, int, Load], second: tuple[float, int, Load] | None
    ) -> tuple[int, Sizing]:
        score, base, load = first
        spared = set()
        if load.sequences < self._counts(load)[0]:
            spared.add("sequences")
        if load.batch_tokens < self._batches(load)[0]:
            spared.add("batch")
        if base or (load.eager and not self.eager[0]):
            spared.add("speed")
        longest = 0
        if not self._wishes.context and load.context < self._model.max_model_len:
            lean = [(i, b.but(eager=self.eager[-1])) for i, b in enumerate(self._bases)]
            longest = max(self._ceiling(i, b) for i, b in lean)
        rival = None
        if second:
            pace, other = self._paces[base].seconds(load), self._paces[second[1]]
            rival = Rival(second[2], other.seconds(second[2]) / pace)
        return base, Sizing(load, True, score, False, frozenset(spared), longest, rival)


def _kind(load: Load, base: int) -> tuple[int, bool]:
    """What tells two ways apart for people: sequences and step size are details."""
    return base, load.eager


def holds(load: Load, model: ModelCard, gpus: Sequence[Gpu]) -> bool:
    """Whether the memory is free and one request of the context fits."""
    return load.utilization <= free_share(gpus) and lacking_gib(model, load, gpus) == 0


def batch_of(tokens: int, base: Load, model: ModelCard) -> int:
    """A step size that holds a whole block: with states at block borders vLLM asks for that."""
    if not base.aligned_states or not model.hybrid:
        return tokens
    return max(tokens, layout_for(model, base).block_tokens)


def longest(load: Load, model: ModelCard, gpus: Sequence[Gpu], wishes: Wishes) -> int:
    """The longest context for a load; 0 for none."""
    if wishes.utilization is None:
        return longest_context(model, load, gpus)
    load = load.but(utilization=wishes.utilization)
    room = int(room_for_context(model, load, gpus))
    limit = model.max_model_len
    return granular(layout_for(model, load).longest(room, limit), limit)


def at(load: Load, context: int, gpus: Sequence[Gpu], wishes: Wishes) -> Load:
    """The load with this context, and the share decided."""
    share = wishes.utilization
    if share is None:
        share = utilization(load, gpus, context)
    return load.but(context=context, utilization=share)


MIN_SERVICE = 4096
"""Where no way holds this much, host memory is worth a try: prompts are longer."""
OFFLOAD_MARGIN_GIB = 0.25


def choose(
    bases: Sequence[Load],
    model: ModelCard,
    gpus: Sequence[Gpu],
    wishes: Wishes,
    ram_mib: int,
) -> tuple[int, Sizing]:
    """The best way of running, and of which base it is; offloaded where none holds the context.

    The bases differ in drafting, cache type and vision tower; the first is the most generous.
    """
    search = Search(bases, model, gpus, wishes)
    found = None
    if wishes.typed_graphs and not wishes.eager:
        found = search.best(eager=(False,))
    found = found or search.best(eager=search.eager)
    if found and found[1].load.context >= min(MIN_SERVICE, model.max_model_len):
        return found
    better = [found] if found else []
    if not found or not wishes.context:
        offloaded = _offloaded(bases, model, gpus, wishes, ram_mib)
        better += [offloaded] if offloaded else []
    if better:
        return min(better, key=lambda way: way[1].score)
    least = min(SMALLEST_CONTEXT, model.max_model_len)
    lean = search.lean(bases[0], eager=search.eager[-1])
    return 0, Sizing(at(lean, wishes.context or least, gpus, wishes), False)


def longest_lean(bases: Sequence[Load], model: ModelCard, gpus: Sequence[Gpu]) -> int:
    """The longest context that the cards hold at all, whatever was asked for; 0 for none."""
    free = Wishes()
    search = Search(bases, model, gpus, free)
    return max(
        longest(search.lean(base, eager=search.eager[-1]), model, gpus, free) for base in bases
    )


def _offloaded(
    bases: Sequence[Load],
    model: ModelCard,
    gpus: Sequence[Gpu],
    wishes: Wishes,
    ram_mib: int,
) -> tuple[int, Sizing] | None:
    """The best small load with what does not fit in host memory.

    None where that is short, and where the cards could hold the weights: then it is the
    operator's context or share that does not fit, and a slow engine is not what was meant.
    """
    least = min(SMALLEST_CONTEXT, model.max_model_len)
    enough = least if wishes.context else min(MIN_SERVICE, model.max_model_len)
    if bases[0].offload_gib or longest_lean(bases, model, gpus) >= enough:
        return None
    emptied = tuple(replace(gpu, free_mib=gpu.total_mib) for gpu in gpus)
    nearly = not wishes.context and longest_lean(bases, model, emptied) >= enough
    found = []
    bare = not all(base.vision for base in bases)
    for number, base in enumerate(bases):
        if base.vision and bare:
            continue  # no image is worth that
        pace = Pace(model, base, gpus, wishes.workload, wishes.nodes)
        least_batch = max(batch_of(LEAN_BATCH, base, model), wishes.sequences or 1)
        batch = wishes.batch_tokens or least_batch
        eager = wishes.eager or base.eager or not (wishes.graphs or wishes.typed_graphs)
        small = replace(base, sequences=wishes.sequences or 1, batch_tokens=batch, eager=eager)
        for context in [wishes.context] if wishes.context else _doublings(least, model):
            if nearly and context > least:
                break
            load = _moved(small, context, model, gpus, wishes, ram_mib)
            if load is None:
                break  # a longer context needs more
            found.append((pace.score(load), number, load))
    if not found:
        return None
    score, number, load = min(found, key=lambda way: way[:2])
    return number, Sizing(
        load, True, score, offloaded=True, spared=frozenset({"sequences", "batch"})
    )


def _doublings(least: int, model: ModelCard) -> Iterator[int]:
    """Contexts from the least on, each half as long again or twice, up to the model's own."""
    context = least
    while context < model.max_model_len:
        yield context
        yield min(context * 3 // 2, model.max_model_len)
        context *= 2
    yield model.max_model_len


def _moved(
    load: Load,
    context: int,
    model: ModelCard,
    gpus: Sequence[Gpu],
    wishes: Wishes,
    ram_mib: int,
) -> Load | None:
    """The load with this context and what that displaces; None where there is no room for it."""
    load = at(load, context, gpus, wishes)
    lacking = ceil((lacking_gib(model, load, gpus) + OFFLOAD_MARGIN_GIB) * 100) / 100
    if lacking * 1024 * load.tensor_parallel > ram_mib * 0.8:
        return None
    load = load.but(offload_gib=lacking)
    return load if holds(load, model, gpus) else None
