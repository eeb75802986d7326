"""The forecast of a plan, by the placement that Ollama itself is expected to choose."""

from __future__ import annotations

from dataclasses import replace

from caovand.core.facts.forecast import MemoryEstimate, unknown
from caovand.core.facts.inventory import Gpu, Inventory
from caovand.core.facts.occupancy import host_reserve_mib
from caovand.core.plan import Plan
from caovand.core.units import MIB
from caovand.engines.common.gguf.estimate import estimate
from caovand.engines.common.gguf.placement import CONTEXT_MIB, devices
from caovand.engines.common.gguf.sizes import GgufLoad
from caovand.engines.common.gguf.sizing import WORKLOADS, LoadSizer, PlacedLoad, card_budgets
from caovand.engines.common.plans import cards_in
from caovand.engines.ollama.planning import variables

MINIMUM_MIB = 457
"""Memory that Ollama leaves free on each card when it places layers, CUDA's context included."""
FEWER_BITS = "a tag quantised to fewer bits, such as NAME:8b-q4_K_M, or of a smaller model"


def cards_of(plan: Plan, inventory: Inventory) -> tuple[Gpu, ...]:
    """The cards that the plan uses."""
    return () if inventory.engine.build == "cpu" else cards_in(plan, inventory)


def sizer_of(inventory: Inventory, gpus: tuple[Gpu, ...], overhead: int, name: str) -> LoadSizer:
    """The sizer for the memory of each card that Ollama may use, and for the workload of this name.

    `overhead` are the bytes left free on each card; with unified memory they include the host's
    part.
    """
    kept = overhead + (MINIMUM_MIB - CONTEXT_MIB) * MIB
    budgets = [
        max(budget + _host_part(gpu) - kept, 0)
        for budget, gpu in zip(card_budgets(gpus, None), gpus, strict=True)
    ]
    return LoadSizer(inventory.model, inventory.host, gpus, budgets, WORKLOADS[name])


def _host_part(gpu: Gpu) -> int:
    return host_reserve_mib(gpu.total_mib) * MIB if gpu.unified else 0


def load_of(plan: Plan) -> GgufLoad:
    """The load that this plan puts on memory."""
    kind = variables.text(plan, variables.CACHE_TYPE) or "f16"
    return GgufLoad(
        context=plan.value(variables.CONTEXT),
        slots=variables.number(plan, variables.PARALLEL) or 1,
        keys=kind,
        values=kind,
        flash=variables.has_flash(plan),
        whole_layers=True,
        filled=WORKLOADS["chat"].filled,
    )


def forecast(plan: Plan, inventory: Inventory) -> MemoryEstimate:
    """The forecast for the fullest card, or for host memory without one."""
    if inventory.model.gguf is None:
        return unknown("no GGUF file")
    gpus, load = cards_of(plan, inventory), load_of(plan)
    placement = _size(plan, inventory).placement
    if not placement.on_cards:
        placement = replace(placement, on_cards=(0,) * len(gpus))
    placed = devices(inventory.model, load, placement)
    return estimate(placed, gpus, inventory, load, None, FEWER_BITS)


def speed(plan: Plan, inventory: Inventory) -> float | None:
    """Modelled decode speed of a single request, in tokens/s."""
    if inventory.model.gguf is None:
        return None
    seconds = _size(plan, inventory).seconds
    return 1 / seconds if seconds else None


def _size(plan: Plan, inventory: Inventory) -> PlacedLoad:
    overhead = variables.number(plan, variables.OVERHEAD)
    sizer = sizer_of(inventory, cards_of(plan, inventory), overhead, "chat")
    return sizer.place(load_of(plan))
