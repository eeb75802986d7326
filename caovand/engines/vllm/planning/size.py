"""Size a plan: on the best of all splits, with what suits each split.

`size_best` sizes one plan for each split (`size_on_split`), each of them from several trials that
one space holds (`size_together`): the rules decide a trial's settings, and `sizing.choice` chooses
the best candidate of the space. The plan of the lowest rank wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from caovand.core.facts.occupancy import without_other_processes
from caovand.core.model_task import POOLING
from caovand.core.plan import Unplannable
from caovand.engines.common.usual_requests import WITHOUT_PREFIXES
from caovand.engines.vllm.flags.spelling import option
from caovand.engines.vllm.machine.ranks import PIPELINE, TENSOR, Split
from caovand.engines.vllm.memory.candidate import Candidate
from caovand.engines.vllm.memory.settings import why_stages_unknown
from caovand.engines.vllm.planning import parallel
from caovand.engines.vllm.planning.capacity import smaller_inputs, text_only_may_help
from caovand.engines.vllm.planning.decisions import FIRST
from caovand.engines.vllm.planning.devices import (
    all_cards,
    freest_cards,
    memory_holders,
    spans_nodes,
    split_is_ours,
    world_size,
)
from caovand.engines.vllm.planning.fit import asked_candidate, candidate_of_unknown, fixed_space
from caovand.engines.vllm.planning.partial_plan import (
    PartialPlan,
    Trial,
    chosen_by_policy,
    decide,
    policy,
)
from caovand.engines.vllm.planning.precision import quantise_at_load, tower_breaks_tiles
from caovand.engines.vllm.planning.speculation import name_gain
from caovand.engines.vllm.planning.trials import (
    exact_or_rounded,
    exact_trials,
    narrower_splits,
    open_trials,
    replica_splits,
    texts_split,
    wider_splits,
    widest_split,
)
from caovand.engines.vllm.sizing.choice import choose, longest_lean, longest_to_the_brim
from caovand.engines.vllm.sizing.pace import CandidatePace
from caovand.engines.vllm.sizing.space import WORKLOADS, Choice, Space

MIN_IN_FLOAT32 = 8192
"""Context below which float32 gives way to float16 on cards that compute it slowly: one
request alone still decodes fast there (vllm#54950: 109 tokens a second of a 0.5B model, 82 in
float32)."""
MIN_ALONE = 4096
"""Context below which the engine waits for other programs to free memory instead of serving."""


def size_best(partial: PartialPlan) -> PartialPlan:
    """The best sized plan; in float16 if float32, which some cards compute faster, leaves little
    room: weights in host memory are slower still. Raises Unplannable."""
    best = _size_splits(partial)
    wide = chosen_by_policy(best, "dtype") == "float32"
    if not wide or _context(best) >= min(MIN_IN_FLOAT32, best.model.max_model_len):
        return best
    half = _size_splits(replace(partial, trial=replace(partial.trial, half=True)))
    return half if half.value("dtype") == "half" and _context(half) > _context(best) else best


class _Tried(NamedTuple):
    """A split that was tried, None for the rules' own; its plan, None if it cannot be planned or
    forecast; and why vLLM refuses it, empty if it does not. A `wider` split uses cards that the
    rules' own leaves idle, or uneven."""

    split: Split | None
    plan: PartialPlan | None
    wider: bool = False
    refused: str = ""


def _size_splits(partial: PartialPlan) -> PartialPlan:
    """The plan of the lowest rank, with the reason for its split. Raises Unplannable."""
    ours, own, problem = split_is_ours(partial), None, None
    try:
        own = size_on_split(partial)
    except Unplannable as error:
        if error.failure != "vram-busy" or not ours:
            raise
        problem = error
    if own and (own.choice is None or own.why_unmodelled or not ours or spans_nodes(own)):
        return own
    most = own.count("tensor_parallel_size") if own else widest_split(partial)
    splits = (narrower_splits(partial, most), wider_splits(partial), replica_splits(partial))
    tried = [_Tried(None, own)]
    for split in chain.from_iterable(splits):
        wider = split.stages > 1 or split.tensor > most
        if not _cannot_win(split, min(tried, key=_rank).plan, wider=wider):
            tried.append(_size_split(split, partial, wider=wider))
    best = min(tried, key=_rank)
    if best.plan is None:
        raise problem or AssertionError
    if best.plan.task in POOLING and _is_sound_as_published(best.plan):
        texts = texts_split(partial, len(best.plan.gpus))
        replicated = _size_split(texts, partial, wider=False).plan if texts else None
        if replicated and _is_sound_as_published(replicated):
            return replicated
    return _with_reason(best.plan, tried[tried.index(best) :], partial, own)


def _size_split(split: Split, partial: PartialPlan, *, wider: bool) -> _Tried:
    """Size this split; only a wider one counts if it leaves weights in host memory."""
    values, env = {PIPELINE: split.stages}, dict(partial.config.engine.env)
    if refused := parallel.stages_problem(values, env, partial.inventory):
        return _Tried(split, None, wider, f"in {split.stages} stages {refused.fact}")
    gpus = all_cards(partial) if split.stages > 1 else partial.gpus
    trial = replace(partial.trial, split=split)
    try:
        plan = size_on_split(replace(partial, gpus=freest_cards(gpus, split.cards), trial=trial))
    except Unplannable:
        return _Tried(split, None, wider)
    counts = plan.choice and not plan.why_unmodelled and (wider or plan.choice.sound)
    return _Tried(split, plan if counts else None, wider)


def _rank(tried: _Tried) -> tuple[int, float]:
    """The rank of what was tried; lower is better, and ties go to the first.

    Plans that fit rank by time; those with weights in host memory come after all others. Plans that
    do not fit rank by the number of cards that would hold the weights. A pooling model reads
    prompts, whose activations all cards of a split exchange in each layer: the fewest cards that
    hold it as published come first.
    """
    partial = tried.plan
    if not partial or not partial.choice:
        return 3, 0.0
    if not partial.choice.fits:
        return 2, -len(partial.gpus)
    if partial.task in POOLING and _is_sound_as_published(partial):
        return -1, len(partial.gpus)
    return int(partial.choice.offloaded), partial.choice.score


def _cannot_win(split: Split, best: PartialPlan | None, *, wider: bool) -> bool:
    """Whether a split cannot be worth more than this plan: fewer cards and stages may only have
    more room, and more cards slow a pooling model down."""
    if best is None or best.choice is None:
        return False
    if best.task in POOLING:
        return wider and _is_sound_as_published(best)
    has_room = split.replicas == 1 and (split.stages > 1 or not wider)
    return has_room and best.choice.unbounded(best.model)


def _is_sound_as_published(partial: PartialPlan) -> bool:
    """Whether it fits without host memory, and without fewer bits than anybody asked for."""
    rounded = chosen_by_policy(partial, "quantization") is not None
    return partial.choice is not None and partial.choice.sound and not rounded


def _with_reason(
    plan: PartialPlan, tried: Sequence[_Tried], partial: PartialPlan, own: PartialPlan | None
) -> PartialPlan:
    """The best plan, the first of these, with the reason for its split and for no wider one."""
    split, setting = tried[0].split, plan.settings["tensor_parallel_size"]
    if split and split.replicas > 1:
        return plan
    reason = _why_fewer(plan, partial, own) if split and not tried[0].wider else setting.reason
    reason = "; ".join(filter(None, (reason, _why_no_wider(plan, tried[1:]))))
    # Over several nodes it is a multiple of the cards that each of them uses.
    settings = {**plan.settings, "tensor_parallel_size": policy(setting.value, reason)}
    return replace(plan, settings=settings)


def _why_fewer(fewer: PartialPlan, partial: PartialPlan, own: PartialPlan | None) -> str:
    """The reason for a narrower split: the fullest card that it leaves out, or the exchange."""
    kept, size = {gpu.index for gpu in fewer.gpus}, len(fewer.gpus)
    left = [(f"GPU {gpu.index}", gpu) for gpu in partial.gpus if gpu.index not in kept]
    for node in partial.inventory.others:  # its cards are in the order of use
        left += [(f"a card of {node.name}", gpu) for gpu in node.gpus[size:]]
    where, least = min(left, key=lambda card: card[1].free_mib)
    if _context(fewer) <= _context(own):
        return (
            f"{size} of {len(partial.gpus)} cards {'is' if size == 1 else 'are'} faster than one "
            "engine over all of them, whose cards would wait for one another"
        )
    return (
        f"{size} of {len(partial.gpus)} cards hold more than all: every card contributes the "
        f"same amount of memory, and {where} has only {least.free_mib} MiB free"
    )


def _why_no_wider(best: PartialPlan, later: Sequence[_Tried]) -> str:
    """The context of the best wider split, and its cost, or why vLLM refuses one."""
    wider = [tried for tried in later if tried.wider]
    larger = [tried for tried in wider if tried.plan and len(tried.plan.gpus) > len(best.gpus)]
    cheapest = min(larger, key=_rank, default=_Tried(None, None))
    plan, split = cheapest.plan, cheapest.split
    if not plan or not split or not plan.choice or not plan.choice.sound:
        return next((tried.refused for tried in wider if tried.refused), "")
    slower = _seconds(plan) / _seconds(best)
    name, count = (PIPELINE, split.stages) if split.stages > 1 else (TENSOR, split.tensor)
    return (
        f"{len(plan.gpus)} cards with {option(name)} {count} would hold a context of"
        f" {_context(plan)} tokens, at {slower:.2f} times the time per token"
    )


def _seconds(partial: PartialPlan) -> float:
    """Modelled seconds per token of the chosen candidate."""
    assert partial.choice
    candidate, workload = partial.choice.candidate, WORKLOADS[partial.config.policy.workload]
    return CandidatePace(partial.model, candidate, partial.cards, workload).seconds(candidate)


def _context(partial: PartialPlan | None) -> int:
    """The context that a plan has on its cards; 0 for none."""
    choice = partial.choice if partial else None
    return choice.candidate.context if choice and choice.sound else 0


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
    exact = [_decide(partial, trial) for trial in exact_trials(first)]
    if exact:
        with suppress(Unplannable):  # only 8 bits fit next to other processes
            sized = exact_or_rounded(size_together(exact), sized)
    return name_gain(sized, _decide(partial, replace(first.trial, cache=sized.trial.cache)))


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
            f"cannot start: {who}, which leaves the model {room} (with the cards to itself it "
            f"would hold a context of {alone} tokens); stop them, choose other cards in [engine] "
            f"gpus, {anyway}or serve a smaller model",
            "vram-busy",
        )
