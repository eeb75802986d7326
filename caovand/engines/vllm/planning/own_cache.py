"""Whether a plan keeps the cache in 16 bits on Turing, where the rules' own choice is 8 bits.

There an 8-bit cache costs no speed, and holds twice as much. But its scales are not calibrated, so
it is not taken for room that nobody needs.
"""

from __future__ import annotations

from dataclasses import replace

from caovand.core.plan import Setting
from caovand.engines.vllm.memory.estimate import estimate
from caovand.engines.vllm.planning.partial_plan import PartialPlan, policy
from caovand.engines.vllm.planning.precision import EIGHT_BITS
from caovand.engines.vllm.sizing.space import WORKLOADS

ENOUGH, ENOUGH_FOR_AS_MANY = 2, 1.5
"""Requests of the planned context that 16 bits must hold: those of two users, or, for as many
sequences as 8 bits get, one and half of another."""
KIND = "kv_cache_dtype"


def may_stay_exact(partial: PartialPlan) -> bool:
    """Whether the rules, and nobody else, chose 8 bits."""
    chosen = partial.settings.get(KIND)
    ours = chosen is not None and chosen.value == EIGHT_BITS and chosen.origin == "policy"
    measured = partial.model.fp8_cache  # its scales lose nothing
    return partial.turing and ours and not (measured or partial.cache or partial.unweighed)


def exact_or_rounded(exact: PartialPlan, rounded: PartialPlan) -> PartialPlan:
    """The sized plan in 16 bits if it loses nothing against the one in 8 bits, else that one; both
    with the reason."""
    if not rounded.choice or rounded.choice.offloaded:
        return rounded
    lost = _lost(exact, rounded)
    if lost and rounded.value(KIND) != EIGHT_BITS:
        return rounded
    if lost:
        kept = rounded.settings[KIND]
        reason = f"{kept.reason}; in 16 bits {lost}"
        return _with(rounded, replace(kept, reason=reason))
    return _with(
        exact,
        policy(
            None,
            f"in 16 bits the cache holds this context {_times(exact):.1f} times; set"
            f' [policy] {KIND} = "{EIGHT_BITS}" for twice as much, with scales that are not'
            " calibrated",
        ),
    )


def _with(partial: PartialPlan, setting: Setting) -> PartialPlan:
    return replace(partial, settings={**partial.settings, KIND: setting})


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
        return f"{one.sequences} requests would be served at once"
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
