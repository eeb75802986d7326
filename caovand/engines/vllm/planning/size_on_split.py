"""The best plan on one split of the cards: of its drafting depths, types, images and graphs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from caovand.core.facts.occupancy import without_other_processes
from caovand.core.plan import Unplannable
from caovand.engines.common.usual_requests import WITHOUT_PREFIXES
from caovand.engines.vllm.flags.spelling import option
from caovand.engines.vllm.memory.candidate import Candidate
from caovand.engines.vllm.memory.settings import why_stages_unknown
from caovand.engines.vllm.planning import drafters
from caovand.engines.vllm.planning.decisions import FIRST
from caovand.engines.vllm.planning.devices import (
    freest_cards,
    memory_holders,
    world_size,
)
from caovand.engines.vllm.planning.fit import asked_candidate, candidate_of_unknown, fixed_space
from caovand.engines.vllm.planning.inputs import smaller_inputs, text_only_may_help
from caovand.engines.vllm.planning.partial_plan import (
    PartialPlan,
    Trial,
    decide,
)
from caovand.engines.vllm.planning.precision import quantise_at_load, tower_breaks_tiles
from caovand.engines.vllm.planning.speculation import may_draft_nothing
from caovand.engines.vllm.planning.trials import (
    exact_or_rounded,
    exact_trials,
    name_gain,
    open_trials,
)
from caovand.engines.vllm.sizing.choice import choose, longest_lean, longest_to_the_brim
from caovand.engines.vllm.sizing.space import WORKLOADS, Choice, Space

MIN_ALONE = 4096
"""Context below which the engine waits for other programs to free memory instead of serving."""


def size_on_split(partial: PartialPlan) -> PartialPlan:
    """Size the plan on the freest cards of its split; of a hybrid's batch without a prefix cache if
    that finishes far more requests. Raises Unplannable."""
    usual = _size_trials(partial)
    if not usual.choice or usual.why_unmodelled or not _may_drop_prefixes(usual):
        return usual
    without = _size_trials(replace(partial, trial=replace(partial.trial, prefixes=False)))
    if not without.choice or not without.choice.sound:
        return usual
    # Without prefixes for one cache type already, the others are weighed without them, too.
    worth = without.choice.score * WITHOUT_PREFIXES <= usual.choice.score
    dropped = not usual.value("enable_prefix_caching")
    return without if worth or dropped or not usual.choice.sound else usual


def _may_drop_prefixes(partial: PartialPlan) -> bool:
    """Whether the policy decides on prefixes for a batch of requests that each need more states
    with them."""
    caching = partial.settings.get("enable_prefix_caching")
    ours = caching is not None and caching.origin == "policy"
    batch = WORKLOADS[partial.config.policy.workload].batch
    return ours and batch and partial.cuda and partial.model.hybrid


def _size_trials(partial: PartialPlan) -> PartialPlan:
    """The best of the drafting depths and cache types that this plan leaves open."""
    first = _decide(partial, partial.trial)
    if not first.gpus or not first.model.layer_types:
        return first
    others = [_decide(partial, trial) for trial in open_trials(first)[1:]]
    sized = size_together([first, *others])
    unfit = sized.choice is not None and not sized.choice.fits
    if unfit and may_draft_nothing(first) and drafters.cannot_be_loaded(sized):
        without = [replace(each.trial, depth=0) for each in (first, *others)]
        sized = size_together([_decide(partial, trial) for trial in without])
    exact = [_decide(partial, trial) for trial in exact_trials(first)]
    if exact:
        with suppress(Unplannable):  # only 8 bits fit next to other processes
            sized = exact_or_rounded(size_together(exact), sized)
    deeper = replace(first.trial, cache=sized.trial.cache, int8_head=sized.trial.int8_head)
    return name_gain(sized, _decide(partial, deeper))


def _decide(partial: PartialPlan, trial: Trial) -> PartialPlan:
    """The plan of a trial before it is sized, on the cards with the most free memory."""
    first = decide(FIRST, replace(partial, trial=trial))
    reason = why_stages_unknown(first.values, first.memory_variables, first.inventory)
    return replace(
        first,
        gpus=freest_cards(first.gpus, world_size(first)),
        why_unmodelled=first.why_unmodelled or reason,
        weights_unknown=first.weights_unknown or bool(reason),
    )


def size_together(partials: Sequence[PartialPlan]) -> PartialPlan:
    """Choose the best of these plans; without limits if a flag prevents the forecast of memory.

    If the model fits when such a flag is ignored, the candidate that fits is kept. Raises
    Unplannable if only other processes keep the model from running.
    """
    first = partials[0]
    if first.weights_unknown:
        return replace(first, choice=Choice(candidate_of_unknown(first), fits=True))
    pairs = _open_bases(partials[:1] if first.why_unmodelled else partials)
    space = replace(fixed_space(first), bases=tuple(base for _, base in pairs))
    choice = choose(space, first.model, first.cards)
    if space.context is None or not choice.sound:
        rounded, stages = space.is_rounded(choice.candidate), choice.candidate.stages
        among = [base for base in space.bases if space.is_rounded(base) == rounded]
        others = tuple(base for base in space.bases if space.is_rounded(base) and not rounded)
        _wait_for_others([base.but(stages=stages) for base in among], first, others, space)
    if first.why_unmodelled and not choice.sound:
        return replace(first, choice=Choice(candidate_of_unknown(first), fits=True))
    return replace(pairs[choice.base][0], space=space, choice=choice)


def _open_bases(partials: Sequence[PartialPlan]) -> list[tuple[PartialPlan, Candidate]]:
    """The bases of these plans, those with smaller images, no videos or no tower, and those with
    quantised 16-bit weights."""
    pairs: list[tuple[PartialPlan, Candidate]] = []
    rounded = [*filter(None, map(quantise_at_load, partials))]
    open_vision = text_only_may_help(partials[0])
    kept = not (open_vision and tower_breaks_tiles(partials[0]))
    for plans, whole in ((partials, kept), (rounded, not any(map(tower_breaks_tiles, rounded)))):
        bases = [(plan, asked_candidate(plan)) for plan in plans]
        pairs += [(plan, base) for plan, base in bases if whole or not base.vision]
        if whole:
            pairs += [(plan, small) for plan, base in bases for small in smaller_inputs(plan, base)]
        if bases and bases[0][1].vision and open_vision:
            pairs += [(plan, base.but(vision=False)) for plan, base in bases]
    return pairs


def _wait_for_others(
    bases: Sequence[Candidate],
    partial: PartialPlan,
    rounded: tuple[Candidate, ...],
    space: Space,
) -> None:
    """Raise Unplannable if only the memory of other processes keeps the model from running here;
    the message says if the `rounded` weights would run."""
    gpus, model = partial.cards, partial.model
    free = without_other_processes(gpus)
    least = min(MIN_ALONE, model.max_model_len)
    if free == gpus or longest_lean(bases, model, gpus) >= least:
        return
    alone = longest_lean(bases, model, free)
    if alone >= least:
        who = memory_holders(partial.gpus, partial.inventory.others, partial.values)
        most = longest_to_the_brim(Space(tuple(bases)), model, gpus)
        room = f"room for a context of {most} tokens at most" if most else "no room"
        anyway = f"set [model] max_model_len = {most} to serve that, " if most else ""
        in_8 = choose(replace(space, bases=rounded), model, gpus) if rounded else None
        if in_8 and in_8.sound and in_8.candidate.context > most:
            room += " as it is stored"
            anyway += (
                f"pass {option('quantization')} {in_8.candidate.quantization} in [engine]"
                f" extra_args for a context of {in_8.candidate.context} tokens with weights rounded"
                " to 8 bits, "
            )
        raise Unplannable(
            f"cannot start: {who}, which leaves the model {room} (alone it would hold"
            f" a context of {alone} tokens); stop them, choose other cards in [engine] gpus,"
            f" {anyway}or serve a smaller model",
            "vram-busy",
        )
