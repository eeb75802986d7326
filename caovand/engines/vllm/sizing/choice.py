"""The best candidate of a space, and what gives way to make one fit: first the cache's own type,
then the weights' own, and last GPU memory, when weights move to the host.

A space lists its most generous bases first, and those whose weights are quantised while they load
last. TurboQuant caches are never among them: k8v4 unpacks whole contexts next to the cache, and in
the published runs it kept no more tokens than an 8-bit cache. An operator may still name them.
Weights go to host memory only if no candidate holds a usual prompt.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from math import ceil

from caovand.core.facts.inventory import Gpu, ModelCard
from caovand.core.facts.occupancy import unoccupied, without_other_processes
from caovand.core.model_task import POOLING
from caovand.engines.vllm.machine.attention import undivided_tokens
from caovand.engines.vllm.memory.candidate import Candidate
from caovand.engines.vllm.memory.estimate import lacking_gib, longest_context
from caovand.engines.vllm.memory.shards import pinned_gib
from caovand.engines.vllm.sizing.pace import CandidatePace
from caovand.engines.vllm.sizing.partition import partition
from caovand.engines.vllm.sizing.search import (
    LEAN_BATCH,
    MIN_CONTEXT,
    USUAL_SEQUENCES,
    CandidateSearch,
    holds,
    requests_that_fit,
    whole_blocks,
    with_context,
)
from caovand.engines.vllm.sizing.space import Choice, RunnerUp, Space

ENOUGH_EXACT = 32_768
"""The rules' own cache type is kept if it holds a context of this length, seven usual
conversations. A checkpoint rarely brings scales for 8 bits, and the loss of quality was not
measured for each model.

Batches and long prompts consider 8 bits sooner. Public measurements: without calibrated scales
models kept 94 to 99 % of their scores, also at long contexts since FlashAttention accumulates in
two levels, which was before 0.21 (vLLM's blog, April 2026). On an A100 the cache had room for twice
as much, prompts were read 2 to 5 % slower, answers came up to 5 % faster (vllm#42058): more
concurrent requests make up for that where the cache limits them. Layers with a small window gain
little."""
AS_QUICK = 0.9
"""Text alone must make a token take less than this share of its time for the vision tower to be
dropped although it leaves a context long enough."""
ALSO_SEE = ("Gemma", "Mistral3", "Qwen3_5", "Llama4", "KimiK25")
"""Beginnings of the architectures of general models, which people choose for text as often as for
images. Any other architecture with a tower exists for it (Qwen3VL, InternVL, Mllama, Pixtral)."""
ENOUGH_FOR_IMAGES = 8192
"""A context for which the tower of such a model is kept: three images of 2,000 tokens, and text."""
MIN_EXACT = 8192
"""If 16-bit weights leave no room for a context this long, they are quantised to 8 bits."""
BEHIND_EXACT = 1e6
"""Added to the score of quantised weights, so that every exact candidate, on any cards, comes
first."""
MIN_SERVICE = 4096
"""If no candidate holds this many tokens, offloading to host memory is tried: prompts are
longer."""
OFFLOADED_SEQUENCES = (8, 4, 2, 1)
"""Numbers of sequences that the search tries when weights are offloaded."""
OFFLOADED_BATCHES = (4096, 2048, 1024, LEAN_BATCH)
"""Step sizes that the search tries with offloaded weights. Each step reads from host memory what
its tokens need, and from some 500 tokens on that is nearly all experts, so each prompt step takes
as long as the bus needs for all of them; larger steps need memory that displaces more weights."""
OFFLOAD_MARGIN_GIB = 0.25
SPARED = frozenset({"sequences", "batch", "speed"})
"""The capacities that a candidate that does not fit has as little of as possible."""
CONTEXT_STEP = 256
"""Tokens by which contexts that could be asked for differ."""


def choose(space: Space, model: ModelCard, gpus: Sequence[Gpu]) -> Choice:
    """The best candidate: with the weights as stored, unless they leave no room."""
    stored = [at for at, base in enumerate(space.bases) if not space.is_rounded(base)]
    rounded = [at for at, base in enumerate(space.bases) if space.is_rounded(base)]
    searched, choice = _choose_cache_type(space, stored, model, gpus)
    if not rounded or _fits_unquantized(space, searched, choice, model, gpus):
        return choice
    _, in_8 = _choose_cache_type(space, rounded, model, gpus)
    if in_8.sound and (not choice.sound or in_8.score < choice.score):
        return replace(in_8, score=BEHIND_EXACT + in_8.score)
    return choice if choice.fits else replace(choice, longest=max(choice.longest, in_8.longest))


def _choose_cache_type(
    space: Space, among: Sequence[int], model: ModelCard, gpus: Sequence[Gpu]
) -> tuple[Sequence[int], Choice]:
    """The best of these bases with the cache's own type, or of all bases if that one holds too
    little; and the bases that were searched."""
    own = [at for at in among if space.bases[at].kv_dtype == space.bases[0].kv_dtype]
    choice = _choose_tower(space, own, model, gpus)
    enough = choice.sound and _holds_enough(space, choice, model)
    blind = is_for_images(model) and not choice.candidate.vision
    if len(own) == len(among) or (enough and not blind):
        return own, choice
    of_all = _choose_tower(space, among, model, gpus)
    return (own, choice) if enough and not of_all.candidate.vision else (among, of_all)


def _holds_enough(space: Space, choice: Choice, model: ModelCard) -> bool:
    """Whether the first base's cache holds what the workload needs: for a batch all sequences that
    the cards decode at once, or a replica's share of them; for long prompts the model's whole
    context.

    More sequences justify 8 bits, but not 4, whose price was measured on one small model only.
    """
    limit = space.context or model.max_model_len
    decodes = space.workload.batch and model.task not in POOLING and not model.sliding_window
    short = "sequences" in choice.spared
    if space.bases[0].replicas > 1:  # a batch's sequences are about twice what the cache holds
        served = choice.candidate.sequences / 2 * space.bases[0].replicas
        short = short and served < space.workload.users
    if decodes and space.bases[0].kv_dtype == "auto" and short:
        return False
    enough = limit if space.workload.long else max(ENOUGH_EXACT, space.workload.length)
    return choice.candidate.context >= min(limit, enough)


def _choose_tower(
    space: Space, among: Sequence[int], model: ModelCard, gpus: Sequence[Gpu]
) -> Choice:
    """The best of these bases; one with the vision tower if that holds enough, and costs no speed
    or is what the model is for, however much more text alone would hold."""
    choice = _choose_stages(space, among, model, gpus)
    seeing = [at for at in among if space.bases[at].vision]
    images = is_for_images(model)
    if choice.candidate.vision or not seeing or (space.workload.batch and not images):
        return choice
    kept = _choose_stages(space, seeing, model, gpus)
    enough = images and kept.candidate.context >= min(ENOUGH_FOR_IMAGES, model.max_model_len)
    if not kept.sound or not (enough or _holds_enough(space, kept, model)):
        return choice
    seconds = [
        CandidatePace(model, space.bases[each.base], gpus, space.workload, space.nodes).seconds(
            each.candidate
        )
        for each in (choice, kept)
    ]
    slower = seconds[0] / seconds[1]
    worth = enough or slower >= AS_QUICK
    return replace(kept, runner_up=RunnerUp(choice.candidate, slower)) if worth else choice


def is_for_images(model: ModelCard) -> bool:
    """Whether people choose the model for what its tower reads."""
    return model.vision and not model.architecture.startswith(ALSO_SEE)


def _choose_stages(
    space: Space, among: Sequence[int], model: ModelCard, gpus: Sequence[Gpu]
) -> Choice:
    """The best of these bases. Layers are dealt to the stages for the leanest candidate first, and
    again for the chosen one if its best deal differs."""
    bases = [space.bases[at] for at in among]
    lean = [base for base in bases if base.vision == bases[0].vision][-1].but(
        sequences=space.sequences or 1, batch_tokens=space.batch_tokens or LEAN_BATCH, eager=True
    )

    def choose_dealt(stages: tuple[int, ...]) -> Choice:
        dealt = tuple(base.but(stages=stages) for base in bases)
        choice = choose_candidate(replace(space, bases=dealt), model, tuple(gpus))
        return replace(choice, base=among[choice.base])

    if not lean.stages or not space.deals_layers:
        return choose_dealt(lean.stages)
    first = choose_dealt(partition(model, lean, gpus, space.workload))
    stages = partition(model, first.candidate, gpus, space.workload)
    if stages == first.candidate.stages:
        return first
    return min(choose_dealt(stages), first, key=lambda choice: (not choice.fits, choice.score))


def _fits_unquantized(
    space: Space, among: Sequence[int], choice: Choice, model: ModelCard, gpus: Sequence[Gpu]
) -> bool:
    """Whether the weights as stored and some context fit on cards that nobody else uses, whatever
    utilization and context were requested."""
    if choice.sound and choice.candidate.context >= MIN_EXACT:
        return True
    free = without_other_processes(gpus)
    bases = [space.bases[at] for at in among]
    least = min(MIN_EXACT, model.max_model_len)
    return free != tuple(gpus) or longest_lean(bases, model, free) >= least


# Reasons, costs and advice size plans with one constraint lifted, which share most of their spaces
# with the first plan: more than half of all searches repeat one of the same `make_plan`.
@lru_cache(maxsize=128)
def choose_candidate(space: Space, model: ModelCard, gpus: tuple[Gpu, ...]) -> Choice:
    """The best candidate with its runner-up; with offloading if none holds the context on the
    cards.

    If nothing fits at all, the leanest candidate, which does not fit either.
    """
    search = CandidateSearch(space, model, gpus)
    fastest = search.fastest((False,)) if space.graphs == "preferred" else None
    fastest = fastest or search.fastest(space.eager)
    if fastest and fastest.candidate.context >= min(MIN_SERVICE, model.max_model_len):
        return fastest
    offloaded = _choose_offloaded(space, model, gpus) if not (fastest and space.context) else None
    if choices := [choice for choice in (fastest, offloaded) if choice]:
        return min(choices, key=lambda choice: choice.score)
    least = space.context or min(MIN_CONTEXT, model.max_model_len)
    lean = search.lean(space.bases[0], eager=space.eager[-1])
    longest = CandidateSearch(replace(space, context=None), model, gpus).longest()
    lean = with_context(lean, least, gpus, space)
    return Choice(lean, fits=False, spared=SPARED, longest=longest)


def longest_lean(bases: Sequence[Candidate], model: ModelCard, gpus: Sequence[Gpu]) -> int:
    """The longest context that the cards can hold, whatever was requested; 0 if they hold none."""
    space = Space(tuple(bases))
    search = CandidateSearch(space, model, gpus)
    lean = (search.lean(base, eager=space.eager[-1]) for base in bases)
    return max(longest_context(model, candidate, gpus) for candidate in lean)


def longest_to_the_brim(space: Space, model: ModelCard, gpus: Sequence[Gpu]) -> int:
    """The longest context that an operator may ask for in this space: in whole steps, without the
    margin of one that we choose; 0 for none."""
    search = CandidateSearch(space, model, gpus)

    def lacks(steps: int, lean: Candidate) -> bool:
        return not holds(with_context(lean, steps * CONTEXT_STEP, gpus, space), model, gpus)

    counts = range(1, model.max_model_len // CONTEXT_STEP + 1)
    lean = (search.lean(base, eager=space.eager[-1]) for base in space.bases)
    most = (bisect_left(counts, True, key=partial(lacks, lean=each)) for each in lean)
    return max(most) * CONTEXT_STEP


def _choose_offloaded(space: Space, model: ModelCard, gpus: Sequence[Gpu]) -> Choice | None:
    """The best small candidate that keeps in host memory the weights that do not fit on the cards.

    None if host memory is too small, or if the cards could hold the weights: then the operator's
    context or utilization is what does not fit, and a slow engine is not what they meant.
    """
    bases, least = space.bases, min(MIN_CONTEXT, model.max_model_len)
    enough = least if space.context else min(MIN_SERVICE, model.max_model_len)
    if any(gpu.unified for gpu in gpus):
        return None  # the host has no other memory
    if bases[0].offload_gib or longest_lean(bases, model, gpus) >= enough:
        return None
    emptied = tuple(map(unoccupied, gpus))
    nearly = not space.context and longest_lean(bases, model, emptied) >= enough
    scored: list[tuple[float, int, Candidate]] = []
    bare = not all(base.vision for base in bases)
    for number, base in enumerate(bases):
        if base.vision and bare:
            continue  # images are not worth offloading weights
        pace = CandidatePace(model, base, gpus, space.workload, space.nodes)
        eager = base.eager or space.graphs in ("none", "open")
        steps = (space.batch_tokens,) if space.batch_tokens else OFFLOADED_BATCHES
        counts = (space.sequences,) if space.sequences else OFFLOADED_SEQUENCES
        for count, step in product(counts, steps):
            item = undivided_tokens(model, vision=base.vision)
            least_step = max(whole_blocks(step, base, model), count, item)
            small = base.but(
                sequences=count,
                batch_tokens=space.batch_tokens or least_step,
                eager=eager,
                cold=not eager,
            )
            for context in [space.context] if space.context else _doublings(least, model):
                if nearly and context > least:
                    break
                moved = _with_offloading(small, context, model, gpus, space)
                if moved is None:
                    break  # a longer context needs more
                usual = min(context, space.workload.cached_tokens)
                if count <= USUAL_SEQUENCES or count <= requests_that_fit(
                    moved, model, gpus, usual
                ):
                    scored.append((pace.score(moved), number, moved))
    if not scored:
        return None
    score, number, moved = min(scored, key=lambda entry: entry[:2])
    smaller = not space.batch_tokens and moved.batch_tokens < OFFLOADED_BATCHES[0]
    spared = frozenset({"sequences", *(["batch"] if smaller else [])})
    return Choice(moved, fits=True, base=number, score=score, offloaded=True, spared=spared)


def _doublings(least: int, model: ModelCard) -> Iterator[int]:
    """Contexts from the smallest up to the model's own, each 1.5 or 2 times the one before."""
    context = least
    while context < model.max_model_len:
        yield context
        yield min(context * 3 // 2, model.max_model_len)
        context *= 2
    yield model.max_model_len


def _with_offloading(
    candidate: Candidate, context: int, model: ModelCard, gpus: Sequence[Gpu], space: Space
) -> Candidate | None:
    """The candidate with this context and the weights that it displaces; None if the host has no
    room."""
    candidate = with_context(candidate, context, gpus, space)
    lacking = ceil((lacking_gib(model, candidate, gpus) + OFFLOAD_MARGIN_GIB) * 100) / 100
    pinned = pinned_gib(lacking, model, candidate.tensor_parallel)
    if pinned * 1024 > space.ram_mib * 0.8:
        return None
    candidate = candidate.but(offload_gib=lacking)
    return candidate if holds(candidate, model, gpus) else None
