"""Size a plan: on the best of all splits, with what suits each split.

`size_best` sizes one plan for each split (`size_on_split`), each of them from several trials that
one space holds (`size_together`): the rules decide a trial's settings, and `sizing.choice` chooses
the best candidate of the space. The plan of the lowest rank wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from caovand.core.model_task import POOLING
from caovand.core.plan import Unplannable
from caovand.engines.vllm.flags.spelling import option
from caovand.engines.vllm.machine.ranks import PIPELINE, TENSOR, Split
from caovand.engines.vllm.planning import parallel
from caovand.engines.vllm.planning.devices import (
    all_cards,
    freest_cards,
    spans_nodes,
    split_is_ours,
)
from caovand.engines.vllm.planning.partial_plan import (
    PartialPlan,
    chosen_by_policy,
    policy,
)
from caovand.engines.vllm.planning.size_on_split import size_on_split
from caovand.engines.vllm.planning.splits import (
    narrower_splits,
    replica_splits,
    texts_split,
    wider_splits,
    widest_split,
)
from caovand.engines.vllm.sizing.pace import CandidatePace
from caovand.engines.vllm.sizing.space import WORKLOADS

MIN_IN_FLOAT32 = 8192
"""Context below which float32 gives way to float16 on cards that compute it slowly: one
request alone still decodes fast there (vllm#54950: 109 tokens a second of a 0.5B model, 82 in
float32)."""


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
