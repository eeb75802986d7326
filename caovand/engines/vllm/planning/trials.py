"""What a plan may try in place of the rules' own choices: splits, drafting depths, cache types.

Tensor parallelism takes memory evenly from every card, so one that is small or used by others holds
the rest back: fewer cards may hold more. If it leaves cards idle or uneven, experts may stay whole,
and layers may be dealt to pipeline stages.

On Turing an 8-bit cache costs no speed, and holds twice as much. But its scales are not calibrated,
so it is not taken for room that nobody needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from caovand.core.plan import Setting
from caovand.engines.vllm.machine.ranks import (
    PIPELINE,
    Split,
    alike,
    largest_split,
    needs_whole_experts,
    shards_whole_experts,
    splits_below,
)
from caovand.engines.vllm.memory.estimate import estimate
from caovand.engines.vllm.planning.devices import every_card, is_single_node
from caovand.engines.vllm.planning.partial_plan import PartialPlan, Trial, policy
from caovand.engines.vllm.planning.precision import (
    EIGHT_BITS,
    OWN_TYPE,
    breaks_at_load,
    smaller_cache,
)
from caovand.engines.vllm.planning.speculation import smaller_depths
from caovand.engines.vllm.sizing.search import requests_that_fit
from caovand.engines.vllm.sizing.space import WORKLOADS

ENOUGH, ENOUGH_FOR_AS_MANY = 2, 1.5
"""Requests of the planned context that 16 bits must hold: those of two users, or, for as many
sequences as 8 bits get, one and half of another."""
CACHE = "kv_cache_dtype"


def widest(partial: PartialPlan) -> int:
    """The largest tensor parallelism that the model's shape allows on the plan's cards."""
    whole = shards_whole_experts(partial.verbatim)
    return largest_split(partial.model, len(partial.gpus), whole_experts=whole, tiled=partial.tiled)


def narrower_splits(partial: PartialPlan, size: int) -> list[Split]:
    """The splits over fewer than `size` cards, the widest first."""
    whole = shards_whole_experts(partial.verbatim)
    sizes = splits_below(partial.model, size, whole_experts=whole, tiled=partial.tiled)
    return [Split(fewer) for fewer in sizes]


def wider_splits(partial: PartialPlan) -> Iterator[Split]:
    """Splits over cards that tensor parallelism alone leaves idle, or uses unevenly: those with
    whole experts, then those in stages."""
    model, verbatim, typed = partial.model, partial.verbatim, shards_whole_experts(partial.verbatim)
    if not is_single_node(partial):
        return
    every, tiled, most = every_card(partial), partial.tiled, widest(partial)
    smaller = splits_below(model, most, whole_experts=typed, tiled=tiled)
    counts = range(2, len(partial.gpus) + 1)
    whole = [one for one in counts if needs_whole_experts(model, one, verbatim, tiled=tiled)]
    sizes = sorted({most, *smaller, *whole}, reverse=True)
    yield from (Split(size) for size in sizes if size > most)
    if PIPELINE in verbatim:
        return
    useful = not all(alike(every[0], gpu) for gpu in every) or bool(breaks_at_load(partial, most))
    for size in sizes:
        split = Split(size, len(every) // size)
        if split.stages > 1 and (useful or split.cards > sizes[0]):
            yield split


def open_trials(partial: PartialPlan) -> list[Trial]:
    """The drafting depths and cache types that the policy may choose on this plan's split, the
    rules' own first."""
    caches = dict.fromkeys(("", smaller_cache(partial)))
    return [trial for cache in caches for trial in _depths(partial, cache)]


def exact_trials(partial: PartialPlan) -> list[Trial]:
    """The same drafting depths with a cache in 16 bits, if the rules, and nobody else, chose 8."""
    chosen = partial.settings.get(CACHE)
    ours = chosen is not None and chosen.value == EIGHT_BITS and chosen.origin == "policy"
    measured = partial.model.fp8_cache  # its scales lose nothing
    if not partial.turing or not ours or measured or partial.trial.cache or partial.unweighed:
        return []
    return list(_depths(partial, OWN_TYPE))


def _depths(partial: PartialPlan, cache: str) -> Iterator[Trial]:
    for depth in (None, *smaller_depths(partial)):
        yield replace(partial.trial, depth=depth, cache=cache)


def exact_or_rounded(exact: PartialPlan, rounded: PartialPlan) -> PartialPlan:
    """The sized plan in 16 bits if it loses nothing against the one in 8 bits, else that one; both
    with the reason."""
    if not rounded.choice or rounded.choice.offloaded:
        return rounded
    lost = _lost(exact, rounded)
    if lost and rounded.value(CACHE) != EIGHT_BITS:
        return rounded
    if lost:
        kept = rounded.settings[CACHE]
        return _with_cache(rounded, replace(kept, reason=f"{kept.reason}; in 16 bits {lost}"))
    return _with_cache(
        exact,
        policy(
            None,
            f"in 16 bits the cache holds this context {_times(exact):.1f} times; set"
            f' [policy] {CACHE} = "{EIGHT_BITS}" for twice as much, with scales that are not'
            " calibrated",
        ),
    )


def _with_cache(partial: PartialPlan, setting: Setting) -> PartialPlan:
    return replace(partial, settings={**partial.settings, CACHE: setting})


def _lost(exact: PartialPlan, rounded: PartialPlan) -> str:
    """What the plan in 16 bits lacks of that in 8 bits, with its verb; empty for nothing."""
    if not exact.choice or not exact.choice.sound or not rounded.choice:
        return "no context would fit"
    one, other = exact.choice.candidate, rounded.choice.candidate
    asked = exact.config.model.max_model_len or exact.verbatim.get("max_model_len")
    if one.context < other.context or (one.context < exact.model.max_model_len and not asked):
        return f"the context would be {one.context} tokens"
    fewer = one.sequences < other.sequences
    if fewer and WORKLOADS[exact.config.policy.workload].batch:
        name = exact.config.policy.workload
        tokens = min(one.context, WORKLOADS[name].cached_tokens)
        fitting = requests_that_fit(one, exact.model, exact.cards, tokens)
        return f"the cache would hold about {fitting:.0f} requests of the workload ({name})"
    if _times(exact) < (ENOUGH if fewer else ENOUGH_FOR_AS_MANY):
        return f"the cache would hold this context {_times(exact):.1f} times"
    if one.eager != other.eager or one.compilation != other.compilation:
        return "CUDA graphs would be cut short"
    if one.vision != other.vision:
        return "images would be off"
    if one.mtp != other.mtp:
        return f"{one.mtp} tokens would be drafted"
    if exact.value("quantization") != rounded.value("quantization"):
        return "the weights would be quantised"
    return ""


def _times(partial: PartialPlan) -> float:
    """How many requests of the planned context the cache holds."""
    assert partial.choice
    warm = partial.choice.candidate.but(cold=False)  # as all starts but the first
    return estimate(partial.model, warm, partial.cards).kv_tokens / warm.context
