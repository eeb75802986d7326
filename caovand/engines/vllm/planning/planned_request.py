"""A request with its plan, from which advice tries others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from caovand.core.config.schema import Config
from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.facts.inventory import Gpu, Inventory
from caovand.core.plan import Plan, Unplannable
from caovand.engines.vllm.flags.spelling import option
from caovand.engines.vllm.memory.settings import gpus_of
from caovand.engines.vllm.planning.decisions import forecast
from caovand.engines.vllm.planning.partial_plan import PartialPlan
from caovand.engines.vllm.planning.request import VllmRequest, refuse_crawling


@dataclass(frozen=True)
class PlannedRequest:
    """A request, the decisions for it, and its plan."""

    request: VllmRequest
    chosen: PartialPlan
    plan: Plan
    memory: MemoryEstimate

    @property
    def config(self) -> Config:
        return self.request.config

    @property
    def inventory(self) -> Inventory:
        return self.request.inventory

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return gpus_of(self.plan, self.inventory)

    def size(
        self, changes: Mapping[str, Any], inventory: Inventory | None = None
    ) -> PartialPlan | None:
        """The sized plan with these settings changed (None: left to the policy), if it fits."""
        try:
            sized = self.request.lift(changes, inventory).size()
        except Unplannable:
            return None
        return sized if sized.choice is None or sized.choice.fits else None

    def attempt(
        self, changes: Mapping[str, Any], inventory: Inventory | None = None
    ) -> tuple[Plan, MemoryEstimate] | None:
        """The plan with these settings changed, if it fits."""
        sized, lifted = self.size(changes, inventory), self.request.lift(changes, inventory)
        if sized is None:
            return None
        try:
            chosen = lifted.decide(sized)
            plan = lifted.write(chosen)
            refuse_crawling(chosen, plan)
        except Unplannable:
            return None
        memory = forecast(plan, lifted.inventory)
        return (plan, memory) if memory.fits is not False else None

    def as_typed(self, name: str, value: Any) -> str:
        """The change as one would type it: as a flag if the operator passed one."""
        if name in self.plan.verbatim or name == "cpu_offload_gb":
            return f"{option(name)} {value}"
        return f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}"
