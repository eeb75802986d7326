"""The forecast of a plan: whether it fits, and what would make it fit where it does not."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.facts.inventory import Gpu, Inventory, ModelCard, device_name
from caovand.core.plan import Plan
from caovand.engines.vllm.memory import load
from caovand.engines.vllm.memory.estimate import Load, estimate, unforeseen
from caovand.engines.vllm.memory.unmodelled import unmodelled
from caovand.engines.vllm.planning.conflicts import conflicts
from caovand.engines.vllm.planning.devices import stages
from caovand.engines.vllm.planning.length import beyond_limit
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


def load_of(plan: Plan, inventory: Inventory) -> Load:
    """What this plan asks of memory."""
    env = {name: setting.value for name, setting in plan.env.items()}
    return load.load_of(_values(plan), inventory, gpus_of(plan, inventory), env)


def _values(plan: Plan) -> dict[str, Any]:
    return {name: setting.value for name, setting in plan.settings.items()}


def _in_ram(found: MemoryEstimate, available_mib: int) -> MemoryEstimate:
    """The forecast of a CPU build: weights and cache share the memory that is free now."""
    short_mib = found.weights_mib + found.kv_mib - available_mib
    if short_mib <= 0:
        return found
    lack = (
        f"{found.weights_mib / 1024:.2f} GiB of weights and {found.kv_mib / 1024:.2f} GiB of cache"
        f" take more than the {available_mib / 1024:.2f} GiB of RAM that are available"
    )
    advice = [f"stop what else uses memory: {ceil(short_mib)} MiB more are needed"]
    least_mib = ceil(found.needed_mib)
    if found.weights_mib + least_mib <= available_mib:
        advice.append(f"--kv-cache-memory-bytes {least_mib << 20} holds one whole request")
    elif found.weights_mib < available_mib:
        advice.append("a shorter max_model_len needs less cache")
    else:
        advice.append("a smaller or quantised checkpoint needs less")
    return replace(found, fits=False, lack=lack, advice=tuple(advice))


def forecast(plan: Plan, inventory: Inventory) -> MemoryEstimate:
    """The forecast, with what would make the plan fit; of what is unknown, only the share."""
    gpus = gpus_of(plan, inventory)
    found = _forecast(plan, inventory, gpus)
    contradictions = conflicts(plan, inventory, gpus)
    if contradictions:
        found = replace(found, fits=False, conflicts=contradictions)
    if found.fits is not False:
        return found
    return replace(found, advice=found.advice or plan.advice)


def _forecast(plan: Plan, inventory: Inventory, gpus: tuple[Gpu, ...]) -> MemoryEstimate:
    model, share = inventory.model, plan.value("gpu_memory_utilization")
    why = _unknown(plan, inventory, gpus)
    if why:
        return unforeseen(share if isinstance(share, (int, float)) else None, gpus, why)
    asked = load_of(plan, inventory)
    if not model.limit_known or _is_longer_on_purpose(plan, model, asked.context):
        model = replace(model, max_model_len=asked.context)
    found = estimate(model, asked, gpus)
    if is_left_to_vllm(plan.value("max_model_len")) and found.max_model_len:
        asked = replace(asked, context=found.max_model_len)  # vLLM takes the longest that fits
        found = estimate(model, asked, gpus)
    return found if gpus else _in_ram(found, inventory.host.available_mib)


def _is_longer_on_purpose(plan: Plan, model: ModelCard, context: int) -> bool:
    env = {name: setting.value for name, setting in plan.env.items()}
    return context > model.max_model_len and not beyond_limit(model, context, _values(plan), env)


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
    why = unmodelled(settings, model)
    if why:
        return why
    if not gpus and stages(settings) > 1:
        return "replicas of a CPU build share the machine's memory, which is not forecast"
    if not gpus and inventory.engine.build == "cuda":
        return "CUDA_VISIBLE_DEVICES of [engine] env names no card that is visible"
    if not gpus and load_of(plan, inventory).kv_bytes is None:
        return "the cache of a CPU build is as large as vLLM makes it"
    return ""
