"""How much is asked of the cards: graphs, sequences, step size, context, share, offloading.

Every way of running that the operator leaves open is weighed by its modelled time for a token of
the workload (`pace`), each with the longest context that it holds, and the best of those that fit
is taken. The share leaves a reserve that grows with the context, and the context is what the share
leaves room for. Weights go to host memory only where no way holds a usual prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil

from caovand.core.facts.inventory import Gpu, ModelCard
from caovand.engines.vllm.memory.estimate import Load, lacking_gib
from caovand.engines.vllm.planning.pace import Pace
from caovand.engines.vllm.planning.search import (
    LEAN_BATCH,
    SMALLEST_CONTEXT,
    Search,
    at,
    batch_of,
    holds,
    longest,
)
from caovand.engines.vllm.planning.sizing import Sizing
from caovand.engines.vllm.planning.wishes import Wishes

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
