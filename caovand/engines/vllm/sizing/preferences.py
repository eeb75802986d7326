"""What a plan gives up for more context, in order: the cache's own type, then the weights' own.

A space lists its bases the most generous first, and those whose weights are rounded while they are
loaded last. TurboQuant caches are never among them: k8v4 unpacks whole contexts next to the cache,
and in the published runs it kept no more tokens than an 8-bit one. An operator may still name them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from caovand.core.facts.inventory import Gpu, ModelCard
from caovand.core.facts.occupancy import without_other_processes
from caovand.engines.vllm.sizing.partition import partition
from caovand.engines.vllm.sizing.search import LEAN_BATCH, best, longest_lean
from caovand.engines.vllm.sizing.space import Choice, Space

ENOUGH_EXACT = 32_768
"""A context of this length keeps the model's own type of cache: seven usual conversations. A
checkpoint rarely brings scales for 8 bits, and what they cost each model was not measured."""
MIN_EXACT = 8192
"""If 16-bit weights leave no room for such a context, they are rounded to 8 bits."""
BEHIND_EXACT = 1e6
"""Added to the score of rounded weights: every exact candidate, on any cards, comes first."""


def choose(space: Space, model: ModelCard, gpus: Sequence[Gpu]) -> Choice:
    """The best candidate: with weights as they are stored, unless they leave no room."""
    stored = [at for at, base in enumerate(space.bases) if not space.is_rounded(base)]
    rounded = [at for at, base in enumerate(space.bases) if space.is_rounded(base)]
    searched, choice = _choose_cache_type(space, stored, model, gpus)
    if not rounded or _fits_unrounded(space, searched, choice, model, gpus):
        return choice
    _, in_8 = _choose_cache_type(space, rounded, model, gpus)
    if in_8.sound and (not choice.sound or in_8.score < choice.score):
        return replace(in_8, score=BEHIND_EXACT + in_8.score)
    return choice


def _choose_cache_type(
    space: Space, among: Sequence[int], model: ModelCard, gpus: Sequence[Gpu]
) -> tuple[Sequence[int], Choice]:
    """The best of these bases with the cache's own type, of all of them if it holds little; and
    which were searched."""
    own = [at for at in among if space.bases[at].kv_dtype == space.bases[0].kv_dtype]
    choice = _search(space, own, model, gpus)
    enough = min(space.context or model.max_model_len, ENOUGH_EXACT)
    if len(own) == len(among) or (choice.sound and choice.candidate.context >= enough):
        return own, choice
    return among, _search(space, among, model, gpus)


def _search(space: Space, among: Sequence[int], model: ModelCard, gpus: Sequence[Gpu]) -> Choice:
    """The best of these bases, with the best layers of each stage for the leanest candidate or,
    if they differ, for the one that was chosen."""
    bases = [space.bases[at] for at in among]
    lean = [base for base in bases if base.vision == bases[0].vision][-1].but(
        sequences=space.sequences or 1, batch_tokens=space.batch_tokens or LEAN_BATCH, eager=True
    )

    def search(stages: tuple[int, ...]) -> Choice:
        dealt = tuple(base.but(stages=stages) for base in bases)
        found = best(replace(space, bases=dealt), model, gpus)
        return replace(found, base=among[found.base])

    if not lean.stages or not space.deals_layers:
        return search(lean.stages)
    choice = search(partition(model, lean, gpus, space.workload))
    stages = partition(model, choice.candidate, gpus, space.workload)
    if stages == choice.candidate.stages:
        return choice
    return min(choice, search(stages), key=lambda one: (not one.fits, one.score))


def _fits_unrounded(
    space: Space, among: Sequence[int], choice: Choice, model: ModelCard, gpus: Sequence[Gpu]
) -> bool:
    """Whether the weights as they are stored and some context fit on the cards if nobody else uses
    them, whatever utilization and context were asked for."""
    if choice.sound and choice.candidate.context >= MIN_EXACT:
        return True
    free = without_other_processes(gpus)
    bases = [space.bases[at] for at in among]
    least = min(MIN_EXACT, model.max_model_len)
    return free != tuple(gpus) or longest_lean(bases, model, free) >= least
