"""The slot's interface for its role in a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from caovand.adapters.engine.pump import RING_BYTES
from caovand.adapters.files.directories import Directories
from caovand.adapters.incidents import Incidents
from caovand.adapters.network.http import Endpoint
from caovand.core.config.schema import Config
from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.facts.inventory import Inventory
from caovand.core.healing.failure import Finding
from caovand.core.health.observation import GpuSample
from caovand.core.lifecycle.events import LifecycleEvent
from caovand.core.lifecycle.state import Snapshot
from caovand.core.plan import Plan
from caovand.daemon.engine.figures import SlotFigures
from caovand.daemon.engine.run import EngineRun
from caovand.daemon.machine import Machine
from caovand.daemon.records.chronicle import Then
from caovand.daemon.records.failure_records import FailureRecords
from caovand.daemon.start.planning import SlotPlanner


class ClusterSlot:
    """A slot's machine, engine and evidence, as described by `part.ClusterSlotProtocol`."""

    def __init__(
        self,
        machine: Machine,
        planner: SlotPlanner,
        run: EngineRun,
        figures: SlotFigures,
        failures: FailureRecords,
        directories: Directories,
    ) -> None:
        self.engine = machine.engine
        self.cache, self.runtime = directories.cache, directories.runtime
        self.incidents: Incidents = failures.store
        self._machine, self._planner, self._run = machine, planner, run
        self._figures, self._failures = figures, failures

    # -- the machine ------------------------------------------------------------------------

    def config(self) -> Config:
        """The configuration in effect."""
        return self._machine.config

    def snapshot(self) -> Snapshot:
        """The machine's current state."""
        return self._machine.snapshot

    def apply(self, event: LifecycleEvent) -> None:
        """Apply an event to the machine."""
        self._machine.apply(event)

    def command(self, event: LifecycleEvent) -> None:
        """Apply an event that the head's operator requested."""
        self._machine.apply_operator_event(event)

    def notice(self, kind: str, text: str) -> None:
        """Publish and log an event."""
        self._machine.notice(kind, text)

    # -- the engine -------------------------------------------------------------------------

    async def inspect(self) -> Inventory:
        """Inspect engine, model and machine; raises inspection.StartObstacle."""
        living = self._run.child is not None
        return await self._planner.inspect_for(self._machine.config, living=living)

    def adopt(self, plan: Plan, inventory: Inventory) -> tuple[Plan, Endpoint]:
        """Make another node's plan the slot's own."""
        self._planner.adopt(plan, inventory, self._machine.mode[0])
        return plan, Endpoint(str(plan.value("host")), int(plan.value("port")), "", False)

    def serves(self) -> None:
        """The head has proven the engine: it serves."""
        if self._run.watching is not None:
            self._run.watching.serves()

    def pids(self) -> Sequence[int]:
        """The engine's processes."""
        return [process.pid for process in self._run.child.members] if self._run.child else []

    def lines(self) -> Sequence[str]:
        """The last lines of the engine's log."""
        return self._run.ring.since(0, RING_BYTES)[0]

    def idle(self) -> bool:
        """Whether the engine had no request at the last poll, and the gateway has sent none."""
        return self._figures.idle and not self._run.busy

    def samples(self) -> Sequence[GpuSample]:
        """The latest samples of the cards that the engine uses."""
        return self._run.samples()

    def forecast(self) -> MemoryEstimate | None:
        """The forecast of the engine's memory."""
        return self._run.forecast

    def reported(self) -> Mapping[str, Any]:
        """Figures from the engine's log, copied because a thread reads that log."""
        return dict(self._run.reported)

    # -- the evidence -----------------------------------------------------------------------

    def gather(self, finding: Finding | None, stacks: bool, then: Then) -> None:
        """Gather the evidence of a failure here, or without `finding` of one elsewhere."""
        self._failures.gather(finding, stacks, then)
