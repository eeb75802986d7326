"""The forecast of a plan, by the placement that Ollama itself is expected to choose."""

from __future__ import annotations

from dataclasses import replace

from caovand.core.facts.forecast import MemoryEstimate, unknown
from caovand.core.facts.inventory import Gpu, Inventory
from caovand.core.facts.occupancy import host_reserve_mib
from caovand.core.plan import Plan
from caovand.core.units import MIB
from caovand.engines.common.gguf import sizing
from caovand.engines.common.gguf.estimate import estimate
from caovand.engines.common.gguf.placement import CONTEXT_MIB, devices
from caovand.engines.common.gguf.sizes import GgufLoad
from caovand.engines.common.plans import cards_in
from caovand.engines.ollama.planning import variables

MINIMUM_MIB = 457
"""Memory that Ollama leaves free on each card when it places layers, CUDA's context included."""
FEWER_BITS = "a tag of fewer bits, such as NAME:8b-q4_K_M, or of a smaller model"


def cards_of(plan: Plan, inventory: Inventory) -> tuple[Gpu, ...]:
    """The cards that the plan uses."""
    return () if inventory.engine.build == "cpu" else cards_in(plan, inventory)


def rooms_of(gpus: tuple[Gpu, ...], overhead: int) -> list[int]:
    """The bytes of each card that Ollama may use; with unified memory the host's part is
    overhead."""
    rooms = zip(sizing.rooms_of(gpus, None), gpus, strict=True)
    kept = overhead + (MINIMUM_MIB - CONTEXT_MIB) * MIB
    return [max(room + _of_the_host(gpu) - kept, 0) for room, gpu in rooms]


def _of_the_host(gpu: Gpu) -> int:
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
        filled=sizing.FILLED["chat"],
    )


def forecast(plan: Plan, inventory: Inventory) -> MemoryEstimate:
    """The forecast for the fullest card, or for host memory without one."""
    if inventory.model.gguf is None:
        return unknown("no GGUF file")
    gpus, load = cards_of(plan, inventory), load_of(plan)
    sized = _size(plan, inventory)
    placement = sized.placement
    if not placement.on_cards:
        placement = replace(placement, on_cards=(0,) * len(gpus))
    found = devices(inventory.model, load, placement)
    return estimate(found, gpus, inventory, load, None, FEWER_BITS)


def speed(plan: Plan, inventory: Inventory) -> float | None:
    """Modelled decode speed of a single request, in tokens/s."""
    if inventory.model.gguf is None:
        return None
    seconds = _size(plan, inventory).seconds
    return 1 / seconds if seconds else None


def _size(plan: Plan, inventory: Inventory) -> sizing.PlacedLoad:
    gpus = cards_of(plan, inventory)
    rooms = rooms_of(gpus, variables.number(plan, variables.OVERHEAD))
    model = inventory.model
    return sizing.place_fixed(model, inventory.host, load_of(plan), gpus, rooms)
