"""What cannot run whatever the memory: settings that contradict machine, model or each other.

They come from verbatim flags, which are never rewritten; so the plan stands, and says that it
cannot run, why, and which flag would do.
"""

from __future__ import annotations

from dataclasses import replace

from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.facts.inventory import Gpu, Inventory
from caovand.core.plan import Plan
from caovand.core.problem import Problem
from caovand.engines.vllm.memory.forecast import cards_of, forecast_memory
from caovand.engines.vllm.planning.decisions import OBSTACLES
from caovand.engines.vllm.planning.obstacles import Scene


def conflicts(plan: Plan, inventory: Inventory, gpus: tuple[Gpu, ...]) -> tuple[Problem, ...]:
    """Each thing that cannot run."""
    scene = Scene(plan, inventory, gpus)
    return tuple(problem for find in OBSTACLES for problem in find(scene))


def forecast(plan: Plan, inventory: Inventory) -> MemoryEstimate:
    """The forecast of memory, with the conflicts and with what would make the plan fit."""
    found = forecast_memory(plan, inventory)
    contradictions = conflicts(plan, inventory, cards_of(plan, inventory))
    if contradictions:
        found = replace(found, fits=False, conflicts=contradictions)
    if found.fits is not False:
        return found
    return replace(found, advice=found.advice or plan.advice)
