"""A longer context that the policy does not choose unasked, with its settings and its price."""

from __future__ import annotations

from dataclasses import replace

from caovand.core.plan import Plan, Setting, Unplannable
from caovand.engines.vllm.machine.link_time import nodes_of
from caovand.engines.vllm.planning.partial_plan import PartialPlan, chosen_by_policy
from caovand.engines.vllm.planning.precision import FOUR_BITS, smaller_cache
from caovand.engines.vllm.planning.request import VllmRequest
from caovand.engines.vllm.sizing.pace import CandidatePace
from caovand.engines.vllm.sizing.space import WORKLOADS

CONTEXT, CACHE, LONG = "max_model_len", "kv_cache_dtype", "long"
WORTH_NAMING = 1.25
"""How much longer a context must be to be offered."""


def with_longer_context(request: VllmRequest, chosen: PartialPlan, plan: Plan) -> Plan:
    """The plan whose reason for its context names what a 4-bit cache would hold, and how fast."""
    context = chosen_by_policy(plan, CONTEXT)
    short = isinstance(context, int) and context < chosen.model.max_model_len
    asked = chosen.config.policy.workload == LONG or smaller_cache(chosen) != FOUR_BITS
    if not short or asked or not chosen.choice or not chosen.choice.sound:
        return plan
    alone = _sized_for_long(request, None)
    drafting = _sized_for_long(request, plan.mtp) if alone and alone.mtp < plan.mtp else None
    longer = [
        sized for sized in (alone, drafting) if sized and _context(sized) >= context * WORTH_NAMING
    ]
    if not longer:
        return plan
    offers = ", and ".join(_offer(sized, drafting=sized is drafting) for sized in longer)
    ours, price = plan.settings[CONTEXT], ""
    if plan.value(CACHE) != FOUR_BITS:
        price = (
            ", whose keys and values err by some 10 %: on real text a model of 270M parameters "
            "kept 79 % of its 20 likeliest tokens"
        )
    reason = (
        f'{ours.reason}; [policy] workload = "{LONG}" holds {offers}, in a 4-bit cache{price};'
        f" tokens a second are modelled, behind {WORKLOADS[LONG].cached_tokens} tokens"
    )
    settings = {**plan.settings, CONTEXT: Setting(ours.value, ours.origin, reason)}
    return replace(plan, settings=settings)


def _offer(sized: PartialPlan, *, drafting: bool) -> str:
    """The context of this plan and its pace, with the setting that makes it draft."""
    how = f"with mtp = {sized.mtp} " if drafting else ""
    drafts = f"MTP {sized.mtp}, " if sized.model.mtp_layers else ""
    return f"{how}{_context(sized)} tokens ({drafts}{_tokens_s(sized):.0f} tokens/s)"


def _sized_for_long(request: VllmRequest, mtp: int | None) -> PartialPlan | None:
    """The plan for long prompts in 4 bits, drafting this many tokens; None if it is another."""
    changes = {"workload": LONG, **({} if mtp is None else {"mtp": mtp})}
    try:
        sized = request.lift(changes).size()
    except Unplannable:
        return None
    sound = sized.choice is not None and sized.choice.sound
    return sized if sound and sized.value(CACHE) == FOUR_BITS else None


def _context(sized: PartialPlan) -> int:
    return sized.choice.candidate.context if sized.choice else 0


def _tokens_s(sized: PartialPlan) -> float:
    """Modelled tokens a second of one answer."""
    assert sized.choice
    candidate, nodes = sized.choice.candidate, nodes_of(sized.inventory)
    pace = CandidatePace(sized.model, candidate, sized.cards, WORKLOADS[LONG], nodes)
    return pace.answering(candidate)
