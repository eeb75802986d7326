"""The choice of a split: over which cards, and how, so that its best candidate beats those of all
other splits.

Tensor parallelism takes memory evenly from every card, so one that is small or used by others holds
the rest back: fewer cards may hold more. If it leaves cards idle or uneven, experts may stay whole,
and layers may be dealt to pipeline stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from caovand.core.facts.occupancy import without_other_processes
from caovand.core.model_task import POOLING
from caovand.core.plan import Unplannable
from caovand.engines.common.usual_requests import WITHOUT_PREFIXES
from caovand.engines.vllm.flags.spelling import option
from caovand.engines.vllm.machine.ranks import (
    PIPELINE,
    TENSOR,
    Split,
    shards_whole_experts,
    splits_below,
)
from caovand.engines.vllm.memory.candidate import Candidate
from caovand.engines.vllm.memory.settings import stages_unknown
from caovand.engines.vllm.planning import parallel
from caovand.engines.vllm.planning.decisions import FIRST
from caovand.engines.vllm.planning.devices import (
    choose_gpus,
    every_card,
    freest,
    is_single_node,
    memory_holders,
    spans_nodes,
    split_is_ours,
    world_size,
)
from caovand.engines.vllm.planning.fit import (
    asked_candidate,
    candidate_of_unknown,
    fixed_space,
    text_only_may_help,
)
from caovand.engines.vllm.planning.own_cache import exact_or_rounded, may_stay_exact
from caovand.engines.vllm.planning.parallel import replica_splits
from caovand.engines.vllm.planning.partial_plan import PartialPlan, decide, policy
from caovand.engines.vllm.planning.precision import (
    OWN_TYPE,
    quantised_at_load,
    smaller_cache,
    tower_breaks_tiles,
)
from caovand.engines.vllm.planning.speculation import smaller_depths
from caovand.engines.vllm.planning.wider import wider_splits
from caovand.engines.vllm.sizing.best import choose, longest_lean, longest_to_the_brim
from caovand.engines.vllm.sizing.pace import CandidatePace
from caovand.engines.vllm.sizing.space import WORKLOADS, Choice


def best_split(partial: PartialPlan) -> PartialPlan:
    """The plan on the best split; in float16 if float32, which some cards compute faster, leaves
    little room: weights in host memory are slower still."""
    best = _best_of_splits(partial)
    dtype = best.settings.get("dtype")
    wide = dtype is not None and dtype.value == "float32" and dtype.origin == "policy"
    if not wide or _context(best) >= min(MIN_IN_FLOAT32, best.model.max_model_len):
        return best
    half = _best_of_splits(replace(partial, in_half=True))
    return half if half.value("dtype") == "half" and _context(half) > _context(best) else best


def _best_of_splits(partial: PartialPlan) -> PartialPlan:
    """The plan on the split whose best candidate is the best of all."""
    ours, best, problem = split_is_ours(partial), None, None
    try:
        best = _size_on_split(partial)
    except Unplannable as found:
        if found.failure != "vram-busy" or not ours:
            raise
        problem = found
    if best and (best.choice is None or best.unweighed or not ours or spans_nodes(best)):
        return best
    most = best.count("tensor_parallel_size") if best else len(partial.gpus)
    whole = shards_whole_experts(partial.verbatim)
    smaller = splits_below(partial.model, most, whole_experts=whole, tiled=partial.tiled)
    if partial.task in POOLING:
        # A pooling model reads prompts, whose activations all cards of a split exchange in each
        # layer.
        attempts = (_attempt(partial, Split(size)) for size in reversed(smaller))
        fewest = next((one for one in attempts if one and _is_sound_as_published(one)), None)
        if fewest:
            return _with_reason(fewest, partial, best)
    for size in smaller:
        if best and best.choice and best.choice.unbounded(partial.model):
            break
        fewer = _attempt(partial, Split(size))
        if fewer and fewer.choice and fewer.choice.sound and _rank(fewer) < _rank(best):
            best = _with_reason(fewer, partial, best)
    best = _wider(partial, best)
    for split in replica_splits(partial):
        apart = _attempt(partial, split)
        if apart and apart.choice and apart.choice.sound and _rank(apart) < _rank(best):
            best = apart
    if best is None:
        raise problem or AssertionError
    return best


def _wider(partial: PartialPlan, best: PartialPlan | None) -> PartialPlan | None:
    """The best of this plan and those that use cards that it leaves idle, or uneven."""
    note, cheapest = "", (1, 0.0)
    for split in wider_splits(partial):
        staged = split.stages > 1
        if staged and best and best.choice and best.choice.unbounded(partial.model):
            continue  # a pipeline is for memory
        values, env = {PIPELINE: split.stages}, dict(partial.config.engine.env)
        problem = parallel.refusal(values, env, partial.inventory)
        if problem:
            note = note or f"in {split.stages} stages {problem.fact}"
            continue
        found = _attempt(partial, split)
        if found and _rank(found) < _rank(best):
            best, note = found, ""
        elif found and best and _rank(found) < cheapest and len(found.gpus) > len(best.gpus):
            note, cheapest = _cost_of(split, found, best), _rank(found)
    if best is None or not note:
        return best
    size = best.settings["tensor_parallel_size"]
    size = replace(size, reason=f"{size.reason}; {note}")
    return replace(best, settings={**best.settings, "tensor_parallel_size": size})


def _is_sound_as_published(partial: PartialPlan) -> bool:
    """Whether it fits without host memory, and without fewer bits than anybody asked for."""
    rounded = partial.settings.get("quantization")
    ours = rounded is not None and rounded.value is not None and rounded.origin == "policy"
    return partial.choice is not None and partial.choice.sound and not ours


def _cost_of(split: Split, found: PartialPlan, best: PartialPlan) -> str:
    """The context that a wider split would hold, and its cost, if it is not chosen."""
    seconds = [_seconds(one) for one in (found, best)]
    name, size = (PIPELINE, split.stages) if split.stages > 1 else (TENSOR, split.tensor)
    return (
        f"{len(found.gpus)} cards with {option(name)} {size} would hold a context of"
        f" {_context(found)} tokens, at {seconds[0] / seconds[1]:.2f} times the time per token"
    )


def _seconds(partial: PartialPlan) -> float:
    """Modelled seconds per token of the chosen candidate."""
    assert partial.choice
    candidate, workload = partial.choice.candidate, WORKLOADS[partial.config.policy.workload]
    return CandidatePace(partial.model, candidate, partial.cards, workload).seconds(candidate)


def idle_warnings(partial: PartialPlan) -> list[str]:
    """A warning if cards that the engine may use stay idle, with the reason."""
    split = partial.settings.get("tensor_parallel_size")
    if not partial.cuda or not is_single_node(partial) or not split or split.origin != "policy":
        return []
    usable = choose_gpus(partial.config, partial.inventory, partial.verbatim)
    idle = [f"GPU {gpu.index}" for gpu in usable if gpu not in partial.gpus]
    if not idle or not partial.model.architecture:
        return []
    named = " and ".join(filter(None, (", ".join(idle[:-1]), idle[-1])))
    return [f"{named} stay{'s' * (len(idle) == 1)} idle: {split.reason}"]


def _attempt(partial: PartialPlan, split: Split) -> PartialPlan | None:
    """The plan on this split; None if it cannot be planned or forecast."""
    gpus = every_card(partial) if split.stages > 1 else partial.gpus
    try:
        found = _size_on_split(replace(partial, gpus=freest(gpus, split.cards), split=split))
    except Unplannable:
        return None
    return found if found.choice and not found.unweighed else None


def _rank(partial: PartialPlan | None) -> tuple[int, float]:
    """A plan's rank; lower is better.

    Plans that fit rank by time; those with weights in host memory come after all others. Plans that
    do not fit rank by the number of cards that would hold the weights.
    """
    if not partial or not partial.choice:
        return 3, 0.0
    if not partial.choice.fits:
        return 2, -len(partial.gpus)
    return int(partial.choice.offloaded), partial.choice.score


def _with_reason(
    fewer: PartialPlan, partial: PartialPlan, larger: PartialPlan | None
) -> PartialPlan:
    """The smaller split with its reason: the fullest card that it leaves out, or the exchange."""
    kept, size = {gpu.index for gpu in fewer.gpus}, len(fewer.gpus)
    left = [(f"GPU {gpu.index}", gpu) for gpu in partial.gpus if gpu.index not in kept]
    for node in partial.inventory.others:  # its cards are in the order of use
        left += [(f"a card of {node.name}", gpu) for gpu in node.gpus[size:]]
    where, least = min(left, key=lambda one: one[1].free_mib)
    reason = (
        f"{size} of {len(partial.gpus)} cards hold more than all: memory is taken evenly, and"
        f" {where} has {least.free_mib} MiB free"
    )
    if _context(fewer) <= _context(larger):
        reason = (
            f"{size} of {len(partial.gpus)} cards are faster than all of them, which would wait for"
            " one another"
        )
    # Over several nodes it is a multiple of the cards that each of them uses.
    split = policy(fewer.value("tensor_parallel_size"), reason)
    return replace(fewer, settings={**fewer.settings, "tensor_parallel_size": split})


def _context(partial: PartialPlan | None) -> int:
    """The context that a plan has on its cards; 0 if there is none."""
    return (
        partial.choice.candidate.context
        if partial and partial.choice and partial.choice.sound
        else 0
    )


def _size_on_split(partial: PartialPlan) -> PartialPlan:
    """The plan on the cards that its split uses; of a hybrid's batch without a prefix cache if that
    finishes far more requests."""
    kept = _size_on_freest(partial)
    if not kept.choice or kept.unweighed or not _may_end_prefixes(kept):
        return kept
    apart = _size_on_freest(replace(partial, prefixes=False))
    if not apart.choice or not apart.choice.sound:
        return kept
    # Without prefixes for one cache type already, the others are weighed without them, too.
    worth = apart.choice.score * WITHOUT_PREFIXES <= kept.choice.score
    ended = not kept.value("enable_prefix_caching")
    return apart if worth or ended or not kept.choice.sound else kept


def _may_end_prefixes(partial: PartialPlan) -> bool:
    """Whether the policy decides on prefixes for a batch of requests that each need more states
    with them."""
    caching = partial.settings.get("enable_prefix_caching")
    ours = caching is not None and caching.origin == "policy"
    batch = WORKLOADS[partial.config.policy.workload].batch
    return ours and batch and partial.cuda and partial.model.hybrid


def _size_on_freest(partial: PartialPlan) -> PartialPlan:
    """The plan on the cards with the most free memory, as many as its split uses."""

    def decided(depth: int | None = None, cache: str = "") -> PartialPlan:
        first = decide(FIRST, replace(partial, depth=depth, cache=cache))
        why = stages_unknown(first.values, first.memory_variables, first.inventory)
        return replace(
            first,
            gpus=freest(first.gpus, world_size(first)),
            unweighed=first.unweighed or why,
            weights_unknown=first.weights_unknown or bool(why),
        )

    first = decided()
    if not first.gpus or not first.model.layer_types:
        return first
    depths = (None, *smaller_depths(first))
    caches = tuple(dict.fromkeys(("", smaller_cache(first))))
    others = [(depth, cache) for cache in caches for depth in depths][1:]
    sized = size_plan([first, *(decided(depth, cache) for depth, cache in others)])
    if not may_stay_exact(first):
        return sized
    try:
        exact = size_plan([decided(depth, OWN_TYPE) for depth in depths])
    except Unplannable:  # only 8 bits fit next to other processes
        return sized
    return exact_or_rounded(exact, sized)


MIN_IN_FLOAT32 = 8192
"""Context below which float32 gives way to float16 on cards that compute it slowly: one
request alone still decodes fast there (vllm#54950: 109 tokens a second of a 0.5B model, 82 in
float32)."""
MIN_ALONE = 4096
"""Context below which the engine waits for other programs to free memory instead of serving."""


def size_plan(partials: Sequence[PartialPlan]) -> PartialPlan:
    """Choose the best of these plans; without limits if a flag prevents the forecast of memory.

    If the model fits when such a flag is ignored, the candidate that fits is kept. Raises
    Unplannable if only other processes keep the model from running.
    """
    first = partials[0]
    if first.weights_unknown:
        return replace(first, choice=Choice(candidate_of_unknown(first), fits=True))
    pairs = _open_bases(partials[:1] if first.unweighed else partials)
    space = replace(fixed_space(first), bases=tuple(base for _, base in pairs))
    choice = choose(space, first.model, first.cards)
    if space.context is None or not choice.sound:
        rounded, stages = space.is_rounded(choice.candidate), choice.candidate.stages
        among = [base for base in space.bases if space.is_rounded(base) == rounded]
        _wait_for_others([base.but(stages=stages) for base in among], first)
    if first.unweighed and not choice.sound:
        return replace(first, choice=Choice(candidate_of_unknown(first), fits=True))
    return replace(pairs[choice.base][0], choice=choice)


def _open_bases(partials: Sequence[PartialPlan]) -> list[tuple[PartialPlan, Candidate]]:
    """The bases of these plans, those without the vision tower, and those with quantised 16-bit
    weights."""
    pairs: list[tuple[PartialPlan, Candidate]] = []
    rounded = [*filter(None, map(quantised_at_load, partials))]
    open_vision = text_only_may_help(partials[0])
    kept = not (open_vision and tower_breaks_tiles(partials[0]))
    for plans, whole in ((partials, kept), (rounded, not any(map(tower_breaks_tiles, rounded)))):
        bases = [(one, asked_candidate(one)) for one in plans]
        pairs += [(one, base) for one, base in bases if whole or not base.vision]
        if bases and bases[0][1].vision and open_vision:
            pairs += [(one, base.but(vision=False)) for one, base in bases]
    return pairs


def _wait_for_others(bases: Sequence[Candidate], partial: PartialPlan) -> None:
    """Raise Unplannable if only the memory of other processes keeps the model from running here."""
    gpus, model = partial.cards, partial.model
    free = without_other_processes(gpus)
    least = min(MIN_ALONE, model.max_model_len)
    if free == gpus or longest_lean(bases, model, gpus) >= least:
        return
    alone = longest_lean(bases, model, free)
    if alone >= least:
        who = memory_holders(partial.gpus, partial.inventory.others, partial.values)
        most = longest_to_the_brim(bases, model, gpus)
        room = f"room for a context of {most} tokens at most" if most else "no room"
        anyway = f"set [model] max_model_len = {most} to serve that, " if most else ""
        raise Unplannable(
            f"cannot start: {who}, which leaves the model {room} (alone it would hold"
            f" a context of {alone} tokens); stop them, choose other cards in [engine] gpus,"
            f" {anyway}or serve a smaller model",
            "vram-busy",
        )
