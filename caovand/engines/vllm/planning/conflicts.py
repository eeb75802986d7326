"""What cannot run whatever the memory: settings that contradict machine, model or each other.

They come from verbatim flags, which are never rewritten; so the plan stands, and says that it
cannot run, why, and which flag would do.
"""

from __future__ import annotations

from caovand.core.facts.inventory import Gpu, Inventory
from caovand.core.plan import Plan
from caovand.core.problem import Problem
from caovand.engines.vllm.planning.flag_table import OBSTACLES
from caovand.engines.vllm.planning.obstacles import Scene


def conflicts(plan: Plan, inventory: Inventory, gpus: tuple[Gpu, ...]) -> tuple[Problem, ...]:
    """Each thing that cannot run."""
    scene = Scene(plan, inventory, gpus)
    return tuple(problem for find in OBSTACLES for problem in find(scene))
