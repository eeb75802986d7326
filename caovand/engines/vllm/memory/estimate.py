"""The memory forecast: what one card holds when the engine runs, and what would make it fit.

Each pipeline stage is forecast as its own model (`PipelineStage`). vLLM gives every stage as many
cache blocks as the stage with the least room can hold: the room there counts, scaled to all layers.

Weights and cache blocks are computed exactly as vLLM computes them; a step's activations are summed
from the tensors alive at its peak (steps.py). Graphs, and memory that belongs to no tensor, are
constants fitted to measured starts; tests/engines/test_memory.py and test_starts.py check them
against those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import NamedTuple

from caovand.core.facts.forecast import MemoryEstimate, MemoryPart
from caovand.core.facts.inventory import Gpu, ModelCard
from caovand.core.facts.occupancy import in_use
from caovand.engines.vllm import releases
from caovand.engines.vllm.memory import shards
from caovand.engines.vllm.memory.candidate import (
    GIB,
    MIB,
    Candidate,
    free_share,
    utilization,
    visible_mib,
)
from caovand.engines.vllm.memory.kv_cache import TURBOQUANT, layout_for, pages
from caovand.engines.vllm.memory.shards import weights_bytes
from caovand.engines.vllm.memory.steps import CONTEXT_MIB, captured_mib, graph_mode, overheads

GRANULE = 1024
"""A context that we choose is a multiple of this many tokens."""
SET_OF_LEFT, SET_MARGIN_MIB = 0.98, 128
"""A cache whose size we set takes this fraction of the remaining memory, less this many MiB, and at
least what vLLM itself would give it."""


class PipelineStage(NamedTuple):
    """One stage, or the whole model without stages: its layers, candidate and cards.

    `scale` is the size of the whole model's cache divided by that of this stage.
    """

    model: ModelCard
    candidate: Candidate
    gpus: Sequence[Gpu]
    scale: float


def stages_of(
    model: ModelCard, candidate: Candidate, gpus: Sequence[Gpu]
) -> tuple[PipelineStage, ...]:
    """Every stage, or the whole model as the only one."""
    if not candidate.stages:
        return (PipelineStage(model, candidate, gpus, 1.0),)
    count, whole = len(candidate.stages), pages(model, candidate.mtp, 0, len(model.layer_types))
    dealt = shards.stage_models(model, candidate.stages, candidate.mtp > 0)
    return tuple(
        PipelineStage(
            dealt[at],
            candidate.but(stages=(), first=at == 0, last=at == count - 1),
            shards.cards_of(gpus, at, count, candidate.tensor_parallel),
            whole / max(pages(model, candidate.mtp, start, end), 1),
        )
        for at, (start, end) in enumerate(shards.ranges(candidate.stages))
    )


def left_bytes(stage: PipelineStage) -> float:
    """Bytes left for the cache on its smallest card; negative if weights alone overflow."""
    candidate = stage.candidate
    if candidate.kv_bytes is not None:
        return candidate.kv_bytes
    return _Spent.on(stage).cache_of(candidate.utilization)


class _Spent(NamedTuple):
    """Bytes spent on a stage's smallest card, and bytes unavailable to its cache; where we set the
    cache's size, also by vLLM's count at a first start."""

    card: float
    now: float
    first: float | None

    @classmethod
    def on(cls, stage: PipelineStage) -> _Spent:
        """What is spent on this stage's smallest card."""
        card, first = _smallest_mib(stage.gpus) * MIB, None
        if stage.candidate.in_bytes:
            cold = stage.candidate.but(in_bytes=False, cold=True)
            first = _spent_bytes(stage._replace(candidate=cold)) + cold.unmeasured_mib * MIB
        return cls(card, _spent_bytes(stage), first)

    def cache_of(self, share: float) -> float:
        """The cache that this share of the card leaves; if we set its size, less a margin for our
        own errors."""
        left = share * self.card - self.now
        if self.first is None:
            return left
        measured = share * self.card - self.first
        return max(left * SET_OF_LEFT // MIB - SET_MARGIN_MIB, measured // MIB) * MIB


def _spent_bytes(stage: PipelineStage) -> float:
    """What vLLM subtracts before it sizes the cache; everything that it takes, if we size the
    cache."""
    model, candidate, _, _ = stage
    taken = sum(size for name, size in overheads(model, candidate) if name != "graphs")
    graphs_counted = candidate.version >= releases.GRAPHS_SUBTRACTED
    if not candidate.eager and (graphs_counted or candidate.in_bytes):
        taken += captured_mib(model, candidate, expected=candidate.measured) * MIB
    return taken + weights_bytes(model, candidate) - candidate.unmeasured_mib * MIB


def kv_bytes(model: ModelCard, candidate: Candidate, gpus: Sequence[Gpu]) -> float:
    """Bytes left for the cache; negative if weights alone overflow.

    In a pipeline each stage counts with the room of the stage that has the least.
    """
    if candidate.kv_blocks is not None:
        return candidate.kv_blocks * layout_for(model, candidate).block_bytes
    return min(left_bytes(one) * one.scale for one in stages_of(model, candidate, gpus))


def share_of_sized(model: ModelCard, candidate: Candidate, gpus: Sequence[Gpu]) -> float:
    """The share to request with a cache whose size we set.

    vLLM only checks that this much of the card is free once the engine has its CUDA context. The
    share is what the engine will take, so that other processes may use the rest.
    """
    (stage,) = stages_of(model, candidate, gpus)
    later = _spent_bytes(stage) + left_bytes(stage) - CONTEXT_MIB * MIB
    return min(ceil(later / MIB / _smallest_mib(gpus) * 1000) / 1000, candidate.utilization)


def estimate(model: ModelCard, candidate: Candidate, gpus: Sequence[Gpu]) -> MemoryEstimate:
    """The forecast; without cards only that of the cache, from the bytes that are set for it."""
    blocks = layout_for(model, candidate)
    available = kv_bytes(model, candidate, gpus)
    every = stages_of(model, candidate, gpus)
    fullest = (
        min(every, key=lambda one: left_bytes(one) * one.scale) if candidate.stages else every[0]
    )
    longest = blocks.longest(int(available), model.max_model_len)
    room = not gpus or candidate.utilization <= free_share(gpus) + 1e-9
    if gpus and (candidate.kv_bytes is not None or candidate.kv_blocks is not None):
        # vLLM allocates as many blocks as are set; with bytes set it ignores the utilization.
        used_fits = all(_used_mib(one, available) <= _smallest_mib(one.gpus) for one in every)
        room = used_fits and (room or candidate.kv_bytes is not None)
    states = lacks_states(model, candidate, gpus)
    smallest = min((gpu.total_mib for gpu in gpus), default=0)
    return MemoryEstimate(
        fits=room and candidate.context <= longest and not states,
        gpu_memory_utilization=candidate.utilization if gpus else None,
        weights_mib=weights_bytes(fullest.model, fullest.candidate) / MIB,
        kv_mib=available / fullest.scale / MIB,
        needed_mib=blocks.needed(candidate.context) / fullest.scale / MIB,
        kv_tokens=blocks.tokens(int(available), candidate.context, candidate.version),
        max_model_len=longest,
        concurrency=blocks.concurrency(int(available), candidate.context),
        reserve_mib=smallest * (1 - candidate.utilization) if gpus else 0.0,
        parts=parts_of(fullest, available),
        lack=states,
    )


def parts_of(stage: PipelineStage, available: float) -> tuple[tuple[MemoryPart, float], ...]:
    """What a card holds in MiB if the cache of all layers has `available` bytes."""
    total = min((gpu.total_mib for gpu in stage.gpus), default=0)
    parts: list[tuple[MemoryPart, float]] = [
        ("weights", weights_bytes(stage.model, stage.candidate)),
        *overheads(stage.model, stage.candidate),
        ("kv", max(available / stage.scale, 0)),
        ("others", max(map(in_use, stage.gpus), default=0) * MIB),
    ]
    used = sum(size for _, size in parts) / MIB
    return (*((name, size / MIB) for name, size in parts), ("free", max(total - used, 0.0)))


def _used_mib(stage: PipelineStage, available: float) -> float:
    return sum(size for name, size in parts_of(stage, available) if name != "free")


def lacks_states(model: ModelCard, candidate: Candidate, gpus: Sequence[Gpu]) -> str:
    """Why vLLM cannot capture a hybrid's decode steps whole; empty if it can, or need not. Each
    sequence then needs a cache block for its state."""
    if (
        not model.hybrid
        or candidate.eager
        or not graph_mode(candidate.compilation).startswith("FULL")
    ):
        return ""
    blocks = int(kv_bytes(model, candidate, gpus) // layout_for(model, candidate).block_bytes)
    if blocks < 1 or candidate.sequences <= blocks:
        return ""
    return (
        f"the cache has {blocks} blocks, and full CUDA graphs of this model need one for each of"
        f" {candidate.sequences} sequences; use max_num_seqs = {blocks} or less"
    )


def longest_context(
    model: ModelCard, candidate: Candidate, gpus: Sequence[Gpu], share: float | None = None
) -> int:
    """The longest context that fits with this share, or with the one that AutoMem chooses; 0 for
    none."""
    limit, blocks = model.max_model_len, layout_for(model, candidate)
    if share is not None:
        room = room_for_context(model, candidate.but(utilization=share), gpus)
        longest = blocks.longest(int(room), limit)
        # Forecasts err by more than the rest.
        return longest if longest == limit else longest // GRANULE * GRANULE or longest
    varying = (
        model.mla or candidate.kv_dtype in TURBOQUANT
    )  # more of a step's memory with more context
    cache_is_set = candidate.kv_blocks is not None or candidate.kv_bytes is not None
    rooms = [(_Spent.on(one), one.scale) for one in stages_of(model, candidate, gpus)]

    def fits(context: int) -> bool:
        share = utilization(candidate, gpus, context)
        if varying or cache_is_set:
            asked = candidate.but(context=context, utilization=share)
            return blocks.needed(context) <= room_for_context(model, asked, gpus)
        needed = blocks.needed(context)
        return all(
            needed <= spare_tokens(candidate, spent.cache_of(share)) * scale
            for spent, scale in rooms
        )

    if fits(limit):
        return limit
    whole = _last_that_fits(lambda count: fits(count * GRANULE), (limit - 1) // GRANULE) * GRANULE
    return whole or _last_that_fits(fits, min(limit, GRANULE) - 1)


def _last_that_fits(fits: Callable[[int], bool], most: int) -> int:
    """The last number up to `most` that fits, if all smaller ones do; 0 for none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def spare_tokens(candidate: Candidate, available: float) -> float:
    """The fraction of the cache that our own context may fill: forecasts err, and a start takes
    minutes.

    If the cache's size is set, only the tokens per byte are forecast, which were right within 1 %.
    """
    return available * 0.95 - 128 * MIB if candidate.measured else available * 0.99


def room_for_context(model: ModelCard, candidate: Candidate, gpus: Sequence[Gpu]) -> float:
    """Bytes that our own context may fill; all of the cache if its blocks are set."""
    if candidate.kv_blocks is not None:
        return kv_bytes(model, candidate, gpus)
    every = stages_of(model, candidate, gpus)
    return min(spare_tokens(candidate, left_bytes(one)) * one.scale for one in every)


def _smallest_mib(gpus: Sequence[Gpu]) -> float:
    return visible_mib(min(gpu.total_mib for gpu in gpus))


def lacking_gib(model: ModelCard, candidate: Candidate, gpus: Sequence[Gpu]) -> float:
    """GiB of weights for which a rank lacks room next to one request of the context; 0 for none."""
    needed = layout_for(model, candidate).needed(candidate.context)
    if candidate.kv_blocks is not None:
        return max((needed - kv_bytes(model, candidate, gpus)) / GIB, 0.0)
    each = stages_of(model, candidate, gpus)
    return max(*((needed / one.scale - left_bytes(one)) / GIB for one in each), 0.0)
