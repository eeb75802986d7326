"""The forecast of a plan: what each device will hold, and whether it fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from caovand.core.facts.forecast import MemoryEstimate, unknown
from caovand.core.facts.inventory import Gpu, Inventory
from caovand.core.plan import Plan
from caovand.core.units import MIB
from caovand.engines.common.gguf.estimate import estimate
from caovand.engines.common.gguf.placement import Device, Placement, devices, step_seconds
from caovand.engines.common.gguf.sizes import GgufLoad
from caovand.engines.common.gguf.sizing import WORKLOADS
from caovand.engines.common.options import count
from caovand.engines.common.plans import cards_in
from caovand.engines.llamacpp.planning.options import CONTEXT, SHARED

FEWER_BITS = "a GGUF file quantised to fewer bits, or of a smaller model"


def gpus_of(plan: Plan, inventory: Inventory) -> tuple[Gpu, ...]:
    """The cards that the plan uses."""
    if inventory.engine.build == "cpu" or plan.value("gpu_layers") == 0:
        return ()
    return cards_in(plan, inventory)


def load_of(plan: Plan) -> GgufLoad:
    """The load that this plan puts on memory."""
    speculative = plan.value("speculative_config") or {}
    return GgufLoad(
        context=count(plan.value(CONTEXT)) or 0,
        slots=count(plan.value("parallel")) or 1,
        shared=plan.value(SHARED) is True,
        batch=count(plan.value("ubatch_size")) or 512,
        keys=str(plan.value("cache_type_k") or "f16"),
        values=str(plan.value("cache_type_v") or "f16"),
        flash=plan.value("flash_attn") != "off",
        depth=plan.mtp,
        mtp=speculative.get("method") == "draft-mtp",
        filled=WORKLOADS["chat"].filled,
    )


def placement_of(plan: Plan, gpus: Sequence[Gpu], layers: int) -> Placement:
    """The plan's distribution of the layers, by its options."""
    if not gpus:
        return Placement()
    many = plan.value("gpu_layers")
    many = min(many, layers + 1) if isinstance(many, int) and many >= 0 else layers + 1
    shares = _shares(plan.value("tensor_split"), len(gpus))
    whole, counts, placed = sum(shares) or 1.0, [], 0
    for card in range(len(gpus)):
        upto = round(many * sum(shares[: card + 1]) / whole)
        counts.append(upto - placed)
        placed = upto
    return Placement(tuple(counts), count(plan.value("n_cpu_moe")) or 0)


def _shares(split: object, cards: int) -> list[float]:
    if not isinstance(split, str):
        return [1.0] * cards
    try:
        shares = [float(part) for part in split.split(",")]
    except ValueError:
        return [1.0] * cards
    return (shares + [0.0] * cards)[:cards] if sum(shares) > 0 else [1.0] * cards


def forecast(plan: Plan, inventory: Inventory) -> MemoryEstimate:
    """The forecast for the fullest card, or for host memory without one."""
    model = inventory.model
    share = plan.value("gpu_memory_utilization")
    if model.gguf is None or not count(plan.value(CONTEXT)):
        return unknown(
            "llama-server chooses the context" if model.gguf else "the model is not in GGUF files"
        )
    gpus = gpus_of(plan, inventory)
    share = share if isinstance(share, (int, float)) else None
    return estimate(_devices(plan, inventory), gpus, inventory, load_of(plan), share, FEWER_BITS)


def speed(plan: Plan, inventory: Inventory) -> float | None:
    """Modelled decode speed of a single request, in tokens/s, without drafts."""
    generates = inventory.model.gguf is not None and plan.task == "generate"
    if not generates or not count(plan.value(CONTEXT)):
        return None
    placed = _devices(plan, inventory)
    seconds = step_seconds(placed, gpus_of(plan, inventory), inventory.host)
    return 1 / seconds if seconds else None


def host_mib(plan: Plan, inventory: Inventory) -> float:
    """MiB of host memory that the engine needs, apart from earlier prompts, which yield to it."""
    host = _devices(plan, inventory)[-1]
    return (host.total - host.prompts) / MIB


def _devices(plan: Plan, inventory: Inventory) -> Sequence[Device]:
    model, gpus = inventory.model, gpus_of(plan, inventory)
    assert model.gguf is not None
    placed = devices(model, load_of(plan), placement_of(plan, gpus, len(model.gguf.layers)))
    prompts = (count(plan.value("cache_ram")) or 0) * MIB
    return (*placed[:-1], replace(placed[-1], prompts=prompts))
