"""Splits over cards that tensor parallelism alone leaves idle, or uses unevenly."""

from __future__ import annotations

from collections.abc import Iterator

from caovand.engines.vllm.machine.ranks import (
    PIPELINE,
    Split,
    alike,
    largest_split,
    needs_whole_experts,
    shards_whole_experts,
    splits_below,
)
from caovand.engines.vllm.planning.devices import every_card, is_single_node
from caovand.engines.vllm.planning.partial_plan import PartialPlan
from caovand.engines.vllm.planning.precision import breaks_at_load


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
