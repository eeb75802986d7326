"""Splits over cards that tensor parallelism alone leaves idle, or uses unevenly, and the cards that
stay idle."""

from __future__ import annotations

from collections.abc import Iterator

from caovand.core.model_task import POOLING
from caovand.engines.common.speeds import all_linked
from caovand.engines.vllm.machine.ranks import (
    PIPELINE,
    Split,
    alike,
    experts_indivisible,
    largest_split,
    needs_whole_experts,
    shards_whole_experts,
    splits_below,
)
from caovand.engines.vllm.planning.devices import choose_gpus, every_card, is_single_node
from caovand.engines.vllm.planning.partial_plan import PartialPlan
from caovand.engines.vllm.planning.precision import breaks_at_load
from caovand.engines.vllm.planning.replicas import shares_out


def wider_splits(partial: PartialPlan) -> Iterator[Split]:
    """The splits with whole experts, then those in stages."""
    model, verbatim, typed = partial.model, partial.verbatim, shards_whole_experts(partial.verbatim)
    if not is_single_node(partial):
        return
    even, every, tiled = len(partial.gpus), every_card(partial), partial.tiled
    most = largest_split(model, even, whole_experts=typed, tiled=tiled)
    smaller = splits_below(model, most, whole_experts=typed, tiled=tiled)
    counts = range(2, even + 1)
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
    replicas = partial.split.replicas if partial.split else 1
    reasons = [split.reason]
    if replicas > 1 or partial.stages > 1:
        part = "replica" if replicas > 1 else "stage"
        reasons = [f"each {part} takes {split.value} of {len(usable)} cards"]
    batch = partial.config.policy.workload == "batch" and partial.task not in POOLING
    if batch and partial.model.experts:
        linked, cards = all_linked(usable), len(usable)
        cut = experts_indivisible(partial.model, cards, tiled=partial.tiled)
        if not linked:
            reasons.append("replicas would share out the experts, which needs NVLink between all")
        elif cut and not shares_out(partial, cards):
            dealt = f"{partial.model.experts} experts cannot be dealt evenly to {cards} cards"
            own = [] if replicas > 1 else reasons
            reasons = [*own, f"replicas cannot use all: {dealt}, and {cut.fact}"]
    alone = "it" if len(idle) == 1 else "them"
    reasons.append(f"another engine can use {alone} ([engine] gpus)")
    return [f"{named} stay{'s' * (len(idle) == 1)} idle: {'; '.join(reasons)}"]
