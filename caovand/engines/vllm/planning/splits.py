"""Splits over the cards: tensor parallelism, pipeline stages, replicas, and whole experts.

Tensor parallelism takes memory evenly from every card, so one that is small or used by others holds
the rest back: fewer cards may hold more. If it leaves cards idle or uneven, experts may stay whole,
and layers may be dealt to pipeline stages.

Replicas are engines side by side, each with its own cards and cache. Those of a model without
experts know nothing of each other. Those of a mixture of experts share out the experts and step
together: vLLM gives each card some of them whole, or a part of every one.
"""

from __future__ import annotations

from collections.abc import Iterator

from caovand.core.model_task import POOLING
from caovand.core.plan import Setting
from caovand.core.problem import Problem
from caovand.core.units import MIB
from caovand.engines.common.speeds import all_linked
from caovand.engines.vllm.flags.spelling import count, option
from caovand.engines.vllm.machine.ranks import (
    EXPERT_PARALLEL,
    PIPELINE,
    REPLICAS,
    TENSOR,
    Split,
    are_alike,
    experts_problem,
    largest_split,
    needs_whole_experts,
    shards_whole_experts,
    splits_below,
)
from caovand.engines.vllm.planning.devices import all_cards, choose_gpus, is_single_node
from caovand.engines.vllm.planning.partial_plan import (
    PartialPlan,
    PlanOnCards,
    policy,
)
from caovand.engines.vllm.planning.precision import (
    breaks_at_load,
)


def widest_split(partial: PartialPlan) -> int:
    """The largest tensor parallelism that the model's shape allows on the plan's cards."""
    whole = shards_whole_experts(partial.verbatim)
    return largest_split(
        partial.model, len(partial.gpus), whole_experts=whole, whole_tiles=partial.whole_tiles
    )


def narrower_splits(partial: PartialPlan, size: int) -> list[Split]:
    """The splits over fewer than `size` cards, the widest first."""
    whole = shards_whole_experts(partial.verbatim)
    sizes = splits_below(partial.model, size, whole_experts=whole, whole_tiles=partial.whole_tiles)
    return [Split(fewer) for fewer in sizes]


def wider_splits(partial: PartialPlan) -> Iterator[Split]:
    """Splits over cards that tensor parallelism alone leaves idle, or uses unevenly: those with
    whole experts, then those in stages."""
    model, verbatim, typed = partial.model, partial.verbatim, shards_whole_experts(partial.verbatim)
    if not is_single_node(partial):
        return
    every, whole_tiles, most = all_cards(partial), partial.whole_tiles, widest_split(partial)
    smaller = splits_below(model, most, whole_experts=typed, whole_tiles=whole_tiles)
    counts = range(2, len(partial.gpus) + 1)
    whole = [
        count
        for count in counts
        if needs_whole_experts(model, count, verbatim, whole_tiles=whole_tiles)
    ]
    sizes = sorted({most, *smaller, *whole}, reverse=True)
    yield from (Split(size) for size in sizes if size > most)
    if PIPELINE in verbatim:
        return
    useful = not all(are_alike(every[0], gpu) for gpu in every) or bool(
        breaks_at_load(partial, most)
    )
    for size in sizes:
        split = Split(size, len(every) // size)
        if split.stages > 1 and (useful or split.cards > sizes[0]):
            yield split


SMALL = 1 / 2
"""Maximum fraction of one card that the weights of a small model take."""
DEALS_EVENLY = frozenset({"GptOssForCausalLM"})
"""Classes whose own loaders give each card as many whole experts (`experts_per_rank` in vLLM 0.21
and 0.33); the other loaders follow vLLM's map, which gives the first cards one more."""


def data_parallel_size(partial: PartialPlan) -> Setting | None:
    split, model = partial.trial.split, partial.model
    if not split or split.replicas == 1:
        return None
    reason = "each replica serves its own requests without waiting for the others' cards"
    if model.experts and not model.latent:
        waits = "" if split.tensor > 1 else ", without waiting for other cards"
        reason = (
            f"attention is each replica's own{waits}; one engine over all these cards would be "
            "slower or leave some idle"
        )
    elif model.experts:
        reason = (
            "each replica caches its own requests; all cards of one engine would hold the same"
            " cache"
        )
    if split.cuts_experts:
        reason += (
            f"; each expert is split over {split.cards} cards, because {model.experts} experts "
            "cannot be distributed evenly"
        )
    return policy(split.replicas, reason if partial.task in POOLING else f"a batch: {reason}")


def replica_splits(partial: PartialPlan) -> Iterator[Split]:
    """Splits into replicas, for a batch on cards that are alike.

    Experts suit latent caches, of which all cards of one engine would hold the same; cards that one
    engine would leave idle; and small models, whose attention need not wait for other cards in
    every layer. They need NVLink, since all tokens pass between the cards.
    """
    model, cards = partial.model, len(partial.gpus)
    batch = partial.config.policy.workload == "batch" and partial.task not in POOLING
    if not batch or not may_replicate(partial):
        return
    if model.experts:
        if not all_linked(partial.gpus):
            return
        small = model.size() <= SMALL * min(gpu.total_mib for gpu in partial.gpus) * MIB
        most = largest_split(model, cards, whole_tiles=partial.whole_tiles)
        least = most if model.latent or small else most + 1
        cards = next((n for n in range(cards, least - 1, -1) if can_share_experts(partial, n)), 0)
    apart = bool(model.experts)
    cuts = apart and not _deals_experts(partial, cards)
    for size in splits_below(model, cards, whole_experts=apart, whole_tiles=partial.whole_tiles):
        replicas, rest = divmod(cards, size)
        if replicas > 1 and not (rest and apart):
            yield Split(size, replicas=replicas, cuts_experts=cuts)


def texts_split(partial: PartialPlan, size: int) -> Split | None:
    """As many replicas of `size` cards as there are cards for a model that pools; None for one.

    Texts need nothing of each other, whatever the workload.
    """
    replicas = len(partial.gpus) // size
    if replicas < 2 or partial.model.experts or not may_replicate(partial):
        return None
    return Split(size, replicas=replicas)


def may_replicate(partial: PartialPlan) -> bool:
    """Whether replicas are possible: on several cards of one machine that are alike."""
    cards = partial.gpus
    known = not partial.engine.flags or option(REPLICAS) in partial.engine.flags
    several = known and is_single_node(partial) and len(cards) > 1
    return several and all(are_alike(cards[0], gpu) for gpu in cards)


def can_share_experts(partial: PartialPlan, cards: int) -> bool:
    """Whether replicas on this many cards can share out the experts."""
    if cards < 2:
        return False
    if _deals_experts(partial, cards):
        return True
    cut = experts_problem(partial.model, cards, whole_tiles=partial.whole_tiles)
    return cut is None and not partial.verbatim.get(EXPERT_PARALLEL)


def _deals_experts(partial: PartialPlan, cards: int) -> bool:
    """Whether each of these cards gets as many whole experts, which most kernels expect."""
    unwanted = partial.verbatim.get(EXPERT_PARALLEL) is False
    return cards > 0 and partial.model.experts % cards == 0 and not unwanted


def experts(placed: PlanOnCards) -> Iterator[Problem]:
    """Experts that these replicas cannot share out."""
    model, values = placed.inventory.model, placed.plan.values
    replicas, tensor = (count(values.get(name)) or 1 for name in (REPLICAS, TENSOR))
    cards = replicas * tensor
    if replicas == 1 or not model.experts:
        return
    uncut = experts_problem(model, cards, whole_tiles=placed.whole_tiles)
    if not shards_whole_experts(values):
        if uncut:
            even = model.experts % cards == 0
            other = f"add {option(EXPERT_PARALLEL)}" if even else "use another number of replicas"
            yield Problem(f"distribute the experts over {cards} cards", uncut.fact, other)
    elif model.experts % cards and model.architecture in DEALS_EVENLY:
        other = "use another number of replicas" if uncut else f"remove {option(EXPERT_PARALLEL)}"
        yield Problem(
            f"distribute {model.experts} experts over {cards} cards",
            f"vLLM's loader for {model.architecture} needs the same number on each card",
            other,
        )


def uneven_experts(partial: PartialPlan) -> list[str]:
    """A warning if the operator's flags give some cards one more whole expert than others."""
    experts, values = partial.model.experts, partial.values
    replicas, tensor = (count(values.get(name)) or 1 for name in (REPLICAS, TENSOR))
    cards = replicas * tensor
    uneven = shards_whole_experts(values) and experts % cards
    if not uneven or partial.model.architecture in DEALS_EVENLY:
        return []
    return [
        f"{option(EXPERT_PARALLEL)}: {experts} experts cannot be distributed evenly over {cards} "
        "cards; vLLM gives some cards one more, but FlashInfer's CUTLASS kernels expect the "
        f"same number on each; use a number of cards that divides {experts}, or remove the flag"
    ]


def idle_warnings(partial: PartialPlan) -> list[str]:
    """A warning if cards that the engine may use stay idle, with the reason."""
    split = partial.settings.get("tensor_parallel_size")
    ours = split is not None and split.origin == "policy"
    if not partial.cuda or not is_single_node(partial) or not split or not ours:
        return []
    usable = choose_gpus(partial.config, partial.inventory, partial.verbatim)
    idle = [f"GPU {gpu.index}" for gpu in usable if gpu not in partial.gpus]
    if not idle or not partial.model.architecture:
        return []
    named = " and ".join(filter(None, (", ".join(idle[:-1]), idle[-1])))
    replicas = partial.trial.split.replicas if partial.trial.split else 1
    reasons = [split.reason]
    if replicas > 1 or partial.stages > 1:
        part = "replica" if replicas > 1 else "stage"
        reasons = [f"each {part} takes {split.value} of {len(usable)} cards"]
    batch = partial.config.policy.workload == "batch" and partial.task not in POOLING
    if batch and partial.model.experts:
        linked, cards = all_linked(usable), len(usable)
        cut = experts_problem(partial.model, cards, whole_tiles=partial.whole_tiles)
        if not linked:
            reasons.append(
                "replicas would distribute the experts, which needs NVLink between all cards"
            )
        elif cut and not can_share_experts(partial, cards):
            dealt = (
                f"{partial.model.experts} experts cannot be distributed evenly over {cards} cards"
            )
            own = [] if replicas > 1 else reasons
            reasons = [*own, f"replicas cannot use all: {dealt}, and {cut.fact}"]
    alone = "it" if len(idle) == 1 else "them"
    reasons.append(f"another engine can use {alone} ([engine] gpus)")
    return [f"{named} stay{'s' * (len(idle) == 1)} idle: {'; '.join(reasons)}"]
