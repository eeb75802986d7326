"""Trials in place of the rules' own choices: drafting depths, cache types, and an int8 lm_head.

On Turing an 8-bit cache costs no speed, and holds twice as much. But its scales are not calibrated,
so it is not taken for room that nobody needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from caovand.core.plan import Setting
from caovand.engines.vllm.memory.estimate import estimate
from caovand.engines.vllm.planning import drafters
from caovand.engines.vllm.planning.fit import cuts_graphs
from caovand.engines.vllm.planning.int8 import may_round_head
from caovand.engines.vllm.planning.partial_plan import (
    PartialPlan,
    Trial,
    chosen_by_policy,
    policy,
)
from caovand.engines.vllm.planning.precision import (
    EIGHT_BITS,
    OWN_TYPE,
    smaller_cache,
)
from caovand.engines.vllm.planning.speculation import LEAVES_MEMORY, smaller_depths
from caovand.engines.vllm.sizing.search import requests_that_fit
from caovand.engines.vllm.sizing.space import WORKLOADS

ENOUGH, ENOUGH_FOR_AS_MANY = 2, 1.5
"""Requests of the planned context that 16 bits must hold: those of two users, or, for as many
sequences as 8 bits get, one and half of another."""
CACHE = "kv_cache_dtype"


def open_trials(partial: PartialPlan) -> list[Trial]:
    """The drafting depths and cache types that the policy may choose on this plan's split, the
    rules' own first."""
    caches = dict.fromkeys(("", smaller_cache(partial)))
    return [trial for cache in caches for trial in _roundings(partial, cache)]


def _roundings(partial: PartialPlan, cache: str) -> Iterator[Trial]:
    """The drafting depths with this cache; with an int8 lm_head as well, if that may be."""
    for trial in _depths(partial, cache):
        yield trial
        if may_round_head(partial):
            yield replace(trial, int8_head=True)


def exact_trials(partial: PartialPlan) -> list[Trial]:
    """The same drafting depths with a cache in 16 bits, if the rules, and nobody else, chose 8."""
    ours = chosen_by_policy(partial, CACHE) == EIGHT_BITS
    measured = partial.model.fp8_cache  # its scales lose nothing
    if not partial.turing or not ours or measured or partial.trial.cache or partial.why_unmodelled:
        return []
    return list(_roundings(partial, OWN_TYPE))


def _depths(partial: PartialPlan, cache: str) -> Iterator[Trial]:
    for depth in (None, *smaller_depths(partial)):
        yield replace(partial.trial, depth=depth, cache=cache)


def exact_or_rounded(exact: PartialPlan, rounded: PartialPlan) -> PartialPlan:
    """The sized plan in 16 bits if it loses nothing against the one in 8 bits, else that one; both
    with the reason."""
    if not rounded.choice or rounded.choice.offloaded:
        return rounded
    lost = _loss_of_exact(exact, rounded)
    if lost and rounded.value(CACHE) != EIGHT_BITS:
        return rounded
    if lost:
        kept = rounded.settings[CACHE]
        return _with_cache(rounded, replace(kept, reason=f"{kept.reason}; in 16 bits {lost}"))
    return _with_cache(
        exact,
        policy(
            None,
            f"in 16 bits the cache holds this context {_requests_cached(exact):.1f} times; set"
            f' [policy] {CACHE} = "{EIGHT_BITS}" for twice as much, with scales that are not'
            " calibrated",
        ),
    )


def _with_cache(partial: PartialPlan, setting: Setting) -> PartialPlan:
    return replace(partial, settings={**partial.settings, CACHE: setting})


def _loss_of_exact(exact: PartialPlan, rounded: PartialPlan) -> str:
    """The loss with a cache in 16 bits against one in 8 bits, as a clause; empty for none."""
    if not exact.choice or not exact.choice.sound or not rounded.choice:
        return "no context would fit"
    candidate, other = exact.choice.candidate, rounded.choice.candidate
    asked = exact.config.model.max_model_len or exact.verbatim.get("max_model_len")
    if candidate.context < other.context or (
        candidate.context < exact.model.max_model_len and not asked
    ):
        return f"the context would be {candidate.context} tokens"
    fewer = candidate.sequences < other.sequences
    if fewer and WORKLOADS[exact.config.policy.workload].batch:
        name = exact.config.policy.workload
        tokens = min(candidate.context, WORKLOADS[name].cached_tokens)
        fitting = requests_that_fit(candidate, exact.model, exact.cards, tokens)
        return f"the cache would hold about {fitting:.0f} requests of the workload ({name})"
    if _requests_cached(exact) < (ENOUGH if fewer else ENOUGH_FOR_AS_MANY):
        return f"the cache would hold this context {_requests_cached(exact):.1f} times"
    if candidate.eager != other.eager or candidate.compilation != other.compilation:
        return "CUDA graphs would be cut short"
    if candidate.vision != other.vision:
        return "images would be off"
    if candidate.mtp != other.mtp:
        return f"{candidate.mtp} tokens would be drafted"
    if exact.value("quantization") != rounded.value("quantization"):
        return "the weights would be quantised"
    return ""


def _requests_cached(partial: PartialPlan) -> float:
    """The number of requests of the planned context that the cache holds."""
    assert partial.choice
    warm = partial.choice.candidate.but(cold=False)  # as all starts but the first
    return estimate(partial.model, warm, partial.cards).kv_tokens / warm.context


def name_gain(sized: PartialPlan, deeper: PartialPlan) -> PartialPlan:
    """The plan with what it gains by drafting less than `deeper`, known once the cards are sized:
    memory, whole CUDA graphs, or time alone."""
    ours = sized.settings.get("speculative_config")
    if ours is None or sized.choice is None or LEAVES_MEMORY not in ours.reason:
        return sized
    if not sized.mtp and drafters.cannot_be_loaded(deeper):
        kept = replace(ours, reason=drafters.CANNOT_LOAD)
        return replace(sized, settings={**sized.settings, "speculative_config": kept})
    candidate, spared = sized.choice.candidate, sized.choice.spared
    less = candidate.eager or candidate.context < sized.model.max_model_len
    short = less or {"sequences", "batch"} & spared or candidate.vision < sized.model.vision
    gains = [LEAVES_MEMORY] if short else []
    whole = not (cuts_graphs(sized) or sized.turing or candidate.eager)
    if cuts_graphs(deeper) and whole:
        gains.append(
            f"keeps full CUDA graphs, which vLLM {sized.engine.version} does not capture with"
            " drafts and FlashInfer's attention"
        )
    gain = " and ".join(gains) or "takes the least time per token here (modelled)"
    changed = replace(ours, reason=ours.reason.replace(LEAVES_MEMORY, gain))
    return replace(sized, settings={**sized.settings, "speculative_config": changed})
