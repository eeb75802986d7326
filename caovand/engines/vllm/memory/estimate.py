"""Forecast memory: the contents of one card while the engine runs, and changes that would make them
fit.

Each pipeline stage is forecast as its own model (`PipelineStage`). vLLM gives every stage as many
cache blocks as the stage with the least room can hold: the room there counts, scaled to all layers.

Weights and cache blocks are computed exactly as vLLM computes them; a step's activations are summed
from the tensors alive at its peak (steps.py). Graphs, and memory that belongs to no tensor, are
constants fitted to measured starts; tests/engines/test_memory.py and test_starts.py check them
against those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import ceil
from typing import NamedTuple

from caovand.core.facts.forecast import MemoryEstimate, MemoryPart, RankForecast
from caovand.core.facts.inventory import Gpu, Inventory, ModelCard
from caovand.core.facts.occupancy import in_use
from caovand.core.plan import Plan
from caovand.core.units import GIB, MIB
from caovand.engines.vllm import releases
from caovand.engines.vllm.flags.spelling import is_left_to_vllm
from caovand.engines.vllm.memory import shards
from caovand.engines.vllm.memory.candidate import Candidate, free_share, utilization, visible_mib
from caovand.engines.vllm.memory.kv_cache import TURBOQUANT, layout_for
from caovand.engines.vllm.memory.load_peak import lacking_to_load_gib, why_not_loaded
from caovand.engines.vllm.memory.settings import (
    candidate_of_plan,
    cards_by_node,
    cards_of_plan,
    gpus_of,
    is_longer_on_purpose,
    why_memory_unknown,
)
from caovand.engines.vllm.memory.shards import PipelineStage, stages_of, weights_bytes
from caovand.engines.vllm.memory.steps import CONTEXT_MIB, captured_mib, graph_mode, overheads

GRANULE = 1024
"""A context that we choose is a multiple of this many tokens."""
SET_OF_LEFT, SET_MARGIN_MIB = 0.98, 128
"""A cache whose size we set takes this fraction of the remaining memory, less this many MiB, and at
least what vLLM itself would give it where the reserve stays whole."""


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
        """The memory spent on this stage's smallest card."""
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
        # A release that measures without its graphs would take them from the reserve.
        measured = min(share * self.card - self.first, left)
        return max(left * SET_OF_LEFT // MIB - SET_MARGIN_MIB, measured // MIB) * MIB


def _spent_bytes(stage: PipelineStage) -> float:
    """The bytes that vLLM subtracts before it sizes the cache; all that it takes if we set the
    size."""
    model, candidate, _, _ = stage
    taken = sum(size for name, size in overheads(model, candidate) if name != "graphs")
    graphs_counted = candidate.kernels.version >= releases.GRAPHS_SUBTRACTED
    if not candidate.eager and (graphs_counted or candidate.in_bytes):
        taken += captured_mib(model, candidate, expected=candidate.measured) * MIB
    return taken + weights_bytes(model, candidate) - candidate.unmeasured_mib * MIB


def kv_bytes(model: ModelCard, candidate: Candidate, gpus: Sequence[Gpu]) -> float:
    """Bytes left for the cache; negative if weights alone overflow.

    In a pipeline each stage counts with the room of the stage that has the least.
    """
    if candidate.kv_blocks is not None:
        return candidate.kv_blocks * layout_for(model, candidate).block_bytes
    return min(left_bytes(stage) * stage.scale for stage in stages_of(model, candidate, gpus))


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
        min(every, key=lambda stage: left_bytes(stage) * stage.scale)
        if candidate.stages
        else every[0]
    )
    longest = blocks.longest(int(available), model.max_model_len)
    room = not gpus or candidate.utilization <= free_share(gpus) + 1e-9
    if gpus and (candidate.kv_bytes is not None or candidate.kv_blocks is not None):
        # vLLM allocates as many blocks as are set; with bytes set it ignores the utilization.
        used_fits = all(_used_mib(stage, available) <= _smallest_mib(stage.gpus) for stage in every)
        room = used_fits and (room or candidate.kv_bytes is not None)
    lack = lacks_states(model, candidate, gpus) or why_not_loaded(every)
    smallest = min((gpu.total_mib for gpu in gpus), default=0)
    return MemoryEstimate(
        fits=room and candidate.context <= longest and not lack,
        gpu_memory_utilization=candidate.utilization if gpus else None,
        weights_mib=weights_bytes(fullest.model, fullest.candidate) / MIB,
        kv_mib=available / fullest.scale / MIB,
        needed_mib=blocks.needed(candidate.context) / fullest.scale / MIB,
        kv_tokens=blocks.tokens(int(available), candidate.context, candidate.kernels.version),
        max_model_len=longest,
        concurrency=blocks.concurrency(int(available), candidate.context),
        reserve_mib=smallest * (1 - candidate.utilization) if gpus else 0.0,
        parts=parts_of(fullest, available),
        lack=lack,
    )


def parts_of(stage: PipelineStage, available: float) -> tuple[tuple[MemoryPart, float], ...]:
    """The contents of a card in MiB if the cache of all layers has `available` bytes."""
    total = min((gpu.total_mib for gpu in stage.gpus), default=0)
    if not layout_for(stage.model, stage.candidate).groups:
        available = 0.0  # nothing is allocated for an encoder
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
        f"the cache has {blocks} blocks, but full CUDA graphs of this model need one for each of "
        f"{candidate.sequences} sequences; use max_num_seqs = {blocks} or less"
    )


def longest_context(
    model: ModelCard, candidate: Candidate, gpus: Sequence[Gpu], share: float | None = None
) -> int:
    """The longest context that fits with this share, or with the one that AutoMem chooses; 0 for
    none."""
    limit, blocks = model.max_model_len, layout_for(model, candidate)
    every = stages_of(model, candidate, gpus)
    if lacking_to_load_gib(every):
        return 0
    if share is not None:
        room = room_for_context(model, candidate.but(utilization=share), gpus)
        longest = blocks.longest(int(room), limit)
        # Forecasts err by more than the rest.
        return longest if longest == limit else longest // GRANULE * GRANULE or longest
    varying = (
        model.mla or model.tower or candidate.kv_dtype in TURBOQUANT
    )  # more of a step's memory with more context
    cache_is_set = candidate.kv_blocks is not None or candidate.kv_bytes is not None
    rooms = [(_Spent.on(stage), stage.scale) for stage in every]

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
    """The last number up to `most` that fits, if all smaller ones do; 0 if there is none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


KEPT_SHARE, KEPT_MIB = 0.05, 128
"""The share that a context of our choice leaves of a cache that is measured at the start."""


def spare_tokens(candidate: Candidate, available: float) -> float:
    """The fraction of the cache that our own context may fill: forecasts err, and a start takes
    minutes.

    If the cache's size is set, only the tokens per byte are forecast, which were right within 1 %.
    """
    if candidate.measured:
        return available * (1 - KEPT_SHARE) - KEPT_MIB * MIB
    return available * 0.99


def room_for_context(model: ModelCard, candidate: Candidate, gpus: Sequence[Gpu]) -> float:
    """Bytes that our own context may fill; all of the cache if its blocks are set."""
    if candidate.kv_blocks is not None:
        return kv_bytes(model, candidate, gpus)
    every = stages_of(model, candidate, gpus)
    return min(spare_tokens(candidate, left_bytes(stage)) * stage.scale for stage in every)


def _smallest_mib(gpus: Sequence[Gpu]) -> float:
    return visible_mib(min(gpu.total_mib for gpu in gpus))


def lacking_gib(model: ModelCard, candidate: Candidate, gpus: Sequence[Gpu]) -> float:
    """GiB of weights that a rank cannot hold next to one request of the context; 0 if it can."""
    needed = layout_for(model, candidate).needed(candidate.context)
    if candidate.kv_blocks is not None:
        return max((needed - kv_bytes(model, candidate, gpus)) / GIB, 0.0)
    each = stages_of(model, candidate, gpus)
    lacking = max((needed / stage.scale - left_bytes(stage)) / GIB for stage in each)
    return max(lacking, lacking_to_load_gib(each))


def forecast_memory(plan: Plan, inventory: Inventory) -> MemoryEstimate:
    """The forecast of memory alone; only the share of the card if nothing else is known."""
    gpus = gpus_of(plan, inventory)
    model, share = inventory.model, plan.value("gpu_memory_utilization")
    unknown = why_memory_unknown(plan, inventory, gpus)
    if unknown:
        return _without_forecast(share if isinstance(share, (int, float)) else None, gpus, unknown)
    asked, gpus = candidate_of_plan(plan, inventory), cards_of_plan(plan, inventory)
    if not model.limit_known or is_longer_on_purpose(plan, model, asked.context):
        model = replace(model, max_model_len=asked.context)
    memory = estimate(model, asked, gpus)
    if is_left_to_vllm(plan.value("max_model_len")) and memory.max_model_len:
        asked = replace(asked, context=memory.max_model_len)  # vLLM takes the longest that fits
        memory = estimate(model, asked, gpus)
    if asked.stages:
        ranks = _ranks(model, asked, cards_by_node(plan, inventory))
        memory = replace(memory, ranks=tuple(ranks))
    return memory if gpus else _forecast_in_ram(memory, inventory.host.available_mib)


def _without_forecast(share: float | None, gpus: Sequence[Gpu], reason: str) -> MemoryEstimate:
    """The share of the card and the memory outside it: all that is known without a forecast."""
    reserve = min((gpu.total_mib for gpu in gpus), default=0) * (1 - (share or 1))
    return MemoryEstimate(None, share, 0, 0, 0, 0, 0, 0, reserve, (), reason=reason)


def _ranks(
    model: ModelCard, asked: Candidate, owned: tuple[tuple[str, Gpu], ...]
) -> Iterator[RankForecast]:
    """Every stage on each node that contributes cards to it."""
    cards = tuple(gpu for _, gpu in owned)
    every, available = stages_of(model, asked, cards), kv_bytes(model, asked, cards)
    fullest = min(every, key=lambda one: left_bytes(one) * one.scale)
    for stage, (one, (start, end)) in enumerate(
        zip(every, shards.ranges(asked.stages), strict=True)
    ):
        stage_cards = shards.cards_of(owned, stage, len(every), asked.tensor_parallel)
        for node in dict.fromkeys(name for name, _ in stage_cards) or ("",):
            gpus = tuple(gpu for name, gpu in stage_cards if name == node)
            yield RankForecast(
                stage=stage,
                node=node,
                cards=tuple(gpu.index for gpu in gpus),
                layers=(start, end - 1),
                total_mib=min((gpu.total_mib for gpu in gpus), default=0),
                parts=parts_of(one._replace(gpus=gpus), available),
                fullest=one is fullest,
            )


def _forecast_in_ram(memory: MemoryEstimate, available_mib: int) -> MemoryEstimate:
    """The forecast of a CPU build: weights and cache share the memory that is free now."""
    ranks = [dict(rank.parts) for rank in memory.ranks]
    weights_mib = sum(parts["weights"] for parts in ranks) if ranks else memory.weights_mib
    kv_mib = sum(parts["kv"] for parts in ranks) if ranks else memory.kv_mib
    short_mib, least_mib = weights_mib + kv_mib - available_mib, ceil(memory.needed_mib)
    if short_mib <= 0:
        return memory
    lack = (
        f"{weights_mib / 1024:.2f} GiB of weights and {kv_mib / 1024:.2f} GiB of cache exceed "
        f"the {available_mib / 1024:.2f} GiB of available RAM"
    )
    advice = [f"stop other programs: {ceil(short_mib)} MiB more are needed"]
    if weights_mib + least_mib * max(len(ranks), 1) <= available_mib:
        advice.append(
            f"--kv-cache-memory-bytes {least_mib << 20} is enough for one full-length request"
        )
    elif weights_mib < available_mib:
        advice.append("a shorter max_model_len needs less cache")
    else:
        advice.append("a smaller or quantised checkpoint needs less memory")
    return replace(memory, fits=False, lack=lack, advice=tuple(advice))
