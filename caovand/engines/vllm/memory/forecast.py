"""The forecast of a plan: whether it fits, and what would make it fit where it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import Any

from caovand.core.facts.forecast import MemoryEstimate, RankForecast
from caovand.core.facts.inventory import Gpu, Inventory, ModelCard, device_name
from caovand.core.plan import Plan
from caovand.engines.vllm.memory import load, stages
from caovand.engines.vllm.memory.estimate import (
    Load,
    estimate,
    kv_bytes,
    left_bytes,
    parts_of,
    shares,
    unforeseen,
)
from caovand.engines.vllm.memory.unmodelled import stages_unknown, unmodelled
from caovand.engines.vllm.planning.length import beyond_limit
from caovand.engines.vllm.planning.ranks import replicas, serving
from caovand.engines.vllm.planning.spelling import count as count_of
from caovand.engines.vllm.planning.spelling import is_left_to_vllm


def gpus_of(plan: Plan, inventory: Inventory) -> tuple[Gpu, ...]:
    """The cards the plan uses."""
    visible = plan.cards
    if visible is None or inventory.engine.build == "cpu":
        return inventory.gpus if inventory.engine.build == "cuda" else ()
    wanted = [name.strip() for name in visible]
    return tuple(
        gpu
        for gpu in inventory.gpus
        if device_name(gpu) in wanted or any(name and gpu.uuid.startswith(name) for name in wanted)
    )


def cards_of(plan: Plan, inventory: Inventory) -> tuple[Gpu, ...]:
    """The cards of all nodes that the plan uses, by rank."""
    return tuple(gpu for _, gpu in _owned(plan, inventory))


def _owned(plan: Plan, inventory: Inventory) -> tuple[tuple[str, Gpu], ...]:
    return serving(gpus_of(plan, inventory), inventory.others, _values(plan))


def load_of(plan: Plan, inventory: Inventory) -> Load:
    """What this plan asks of memory."""
    return load.load_of(_values(plan), inventory, cards_of(plan, inventory), _env(plan))


def _values(plan: Plan) -> dict[str, Any]:
    return {name: setting.value for name, setting in plan.settings.items()}


def _env(plan: Plan) -> dict[str, Any]:
    return {name: setting.value for name, setting in plan.env.items()}


def _in_ram(found: MemoryEstimate, available_mib: int) -> MemoryEstimate:
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
    advice = [f"stop what else uses memory: {ceil(short_mib)} MiB more are needed"]
    if weights_mib + least_mib * max(len(ranks), 1) <= available_mib:
        advice.append(f"--kv-cache-memory-bytes {least_mib << 20} holds one whole request")
    elif weights_mib < available_mib:
        advice.append("a shorter max_model_len needs less cache")
    else:
        advice.append("a smaller or quantised checkpoint needs less")
    return replace(found, fits=False, lack=lack, advice=tuple(advice))


def forecast_memory(plan: Plan, inventory: Inventory) -> MemoryEstimate:
    """The forecast of memory alone; of what is unknown, only the share."""
    gpus = gpus_of(plan, inventory)
    model, share = inventory.model, plan.value("gpu_memory_utilization")
    why = _unknown(plan, inventory, gpus)
    if why:
        return unforeseen(share if isinstance(share, (int, float)) else None, gpus, why)
    asked, gpus = load_of(plan, inventory), cards_of(plan, inventory)
    if not model.limit_known or _is_longer_on_purpose(plan, model, asked.context):
        model = replace(model, max_model_len=asked.context)
    found = estimate(model, asked, gpus)
    if is_left_to_vllm(plan.value("max_model_len")) and found.max_model_len:
        asked = replace(asked, context=found.max_model_len)  # vLLM takes the longest that fits
        found = estimate(model, asked, gpus)
    if asked.stages:
        ranks = _ranks(model, asked, _owned(plan, inventory))
        found = replace(found, ranks=tuple(ranks))
    return found if gpus else _in_ram(found, inventory.host.available_mib)


def _ranks(
    model: ModelCard, asked: Load, owned: tuple[tuple[str, Gpu], ...]
) -> Iterator[RankForecast]:
    """Every stage on each node that has cards of it."""
    cards = tuple(gpu for _, gpu in owned)
    every, available = shares(model, asked, cards), kv_bytes(model, asked, cards)
    fullest = min(every, key=lambda one: left_bytes(one) * one.scale)
    for stage, (one, (start, end)) in enumerate(
        zip(every, stages.ranges(asked.stages), strict=True)
    ):
        held = stages.cards_of(owned, stage, len(every), asked.tensor_parallel)
        for node in dict.fromkeys(name for name, _ in held) or ("",):
            gpus = tuple(gpu for name, gpu in held if name == node)
            yield RankForecast(
                stage=stage,
                node=node,
                cards=tuple(gpu.index for gpu in gpus),
                layers=(start, end - 1),
                total_mib=min((gpu.total_mib for gpu in gpus), default=0),
                parts=parts_of(one._replace(gpus=gpus), available),
                fullest=one is fullest,
            )


def _is_longer_on_purpose(plan: Plan, model: ModelCard, context: int) -> bool:
    longer = context > model.max_model_len
    return longer and not beyond_limit(model, context, _values(plan), _env(plan))


def _unknown(plan: Plan, inventory: Inventory, gpus: tuple[Gpu, ...]) -> str:
    """Why nothing can be forecast; empty where it can."""
    model = inventory.model
    if not model.architecture:
        return "the model is not on this machine yet"
    if not model.layer_types:
        return "config.json does not tell the model's layers"
    if not model.limit_known and count_of(plan.value("max_model_len")) is None:
        return "config.json does not tell the longest context; set max_model_len to have a forecast"
    settings = _values(plan)
    why = unmodelled(settings, model) or stages_unknown(settings, _env(plan), inventory)
    if why:
        return why
    if not gpus and replicas(settings) > 1:
        return "replicas of a CPU build share the machine's memory, which is not forecast"
    if not gpus and inventory.engine.build == "cuda":
        return "CUDA_VISIBLE_DEVICES of [engine] env names no card that is visible"
    if not gpus and load_of(plan, inventory).kv_bytes is None:
        return "the cache of a CPU build is as large as vLLM makes it"
    return ""
