"""The forecast of a plan: the memory of each rank, or why it cannot be forecast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil

from caovand.core.facts.forecast import MemoryEstimate, RankForecast
from caovand.core.facts.inventory import Gpu, Inventory, ModelCard
from caovand.core.plan import Plan
from caovand.engines.vllm.flags.spelling import is_left_to_vllm
from caovand.engines.vllm.memory import shards
from caovand.engines.vllm.memory.candidate import Candidate
from caovand.engines.vllm.memory.estimate import (
    estimate,
    kv_bytes,
    left_bytes,
    parts_of,
    stages_of,
)
from caovand.engines.vllm.memory.settings import (
    candidate_of_plan,
    cards_by_node,
    cards_of_plan,
    gpus_of,
    is_longer_on_purpose,
    memory_unknown,
)


def forecast_memory(plan: Plan, inventory: Inventory) -> MemoryEstimate:
    """The forecast of memory alone; only the share of the card if nothing else is known."""
    gpus = gpus_of(plan, inventory)
    model, share = inventory.model, plan.value("gpu_memory_utilization")
    why = memory_unknown(plan, inventory, gpus)
    if why:
        return _without_forecast(share if isinstance(share, (int, float)) else None, gpus, why)
    asked, gpus = candidate_of_plan(plan, inventory), cards_of_plan(plan, inventory)
    if not model.limit_known or is_longer_on_purpose(plan, model, asked.context):
        model = replace(model, max_model_len=asked.context)
    found = estimate(model, asked, gpus)
    if is_left_to_vllm(plan.value("max_model_len")) and found.max_model_len:
        asked = replace(asked, context=found.max_model_len)  # vLLM takes the longest that fits
        found = estimate(model, asked, gpus)
    if asked.stages:
        ranks = _ranks(model, asked, cards_by_node(plan, inventory))
        found = replace(found, ranks=tuple(ranks))
    return found if gpus else _forecast_in_ram(found, inventory.host.available_mib)


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


def _forecast_in_ram(found: MemoryEstimate, available_mib: int) -> MemoryEstimate:
    """The forecast of a CPU build: weights and cache share the memory that is free now."""
    ranks = [dict(rank.parts) for rank in found.ranks]
    weights_mib = sum(parts["weights"] for parts in ranks) if ranks else found.weights_mib
    kv_mib = sum(parts["kv"] for parts in ranks) if ranks else found.kv_mib
    short_mib, least_mib = weights_mib + kv_mib - available_mib, ceil(found.needed_mib)
    if short_mib <= 0:
        return found
    lack = (
        f"{weights_mib / 1024:.2f} GiB of weights and {kv_mib / 1024:.2f} GiB of cache"
        f" take more than the {available_mib / 1024:.2f} GiB of RAM that are available"
    )
    advice = [f"stop other programs: {ceil(short_mib)} MiB more are needed"]
    if weights_mib + least_mib * max(len(ranks), 1) <= available_mib:
        advice.append(f"--kv-cache-memory-bytes {least_mib << 20} holds one whole request")
    elif weights_mib < available_mib:
        advice.append("a shorter max_model_len needs less cache")
    else:
        advice.append("a smaller or quantised checkpoint needs less")
    return replace(found, fits=False, lack=lack, advice=tuple(advice))
