"""The inspection before a start: kill orphans, choose a plan, and check whether its engine can
start.
"""

from __future__ import annotations

import asyncio
import random
import traceback

from caovand.adapters.files.config_file import ModeMemory
from caovand.adapters.network.http import Endpoint
from caovand.core import limits
from caovand.core.config.key import ConfigError
from caovand.core.healing.failure import Finding
from caovand.core.lifecycle.events import Inspect, LifecycleEvent, Planned, StartRefused
from caovand.core.plan import Plan
from caovand.daemon.cluster.part import MachineWithPart
from caovand.daemon.engine.run import EngineRun
from caovand.daemon.shared import now
from caovand.daemon.start import inspection
from caovand.daemon.start.inspection import PreparedStart
from caovand.daemon.start.planning import SlotPlanner
from caovand.daemon.tasks import Task, Tasks, cancel

MAX_REPLANS = 3
"""Maximum replanning within one attempt because the machine has changed in the meantime."""


class Inspector:
    """Inspects for a machine, one inspection at a time; the result is an event."""

    def __init__(
        self,
        machine: MachineWithPart,
        planner: SlotPlanner,
        run: EngineRun,
        modes: ModeMemory,
        tasks: Tasks,
    ) -> None:
        self._machine, self._planner, self._run = machine, planner, run
        self._modes, self._tasks = modes, tasks
        self._inspecting: Task | None = None

    def begin(self, action: Inspect) -> None:
        """Start an inspection, replacing the current one."""
        cancel(self._inspecting)
        self._inspecting = self._tasks.begin(self._inspect(action))

    def cancel(self) -> None:
        """Cancel the current inspection."""
        cancel(self._inspecting)

    async def _inspect(self, action: Inspect) -> None:
        """Apply Planned, or StartRefused with the reason why no engine can start."""
        run, machine, number = self._run, self._machine, action.number
        living = machine.snapshot.plan if run.child else None
        try:
            if run.ending:
                # The machine gave up waiting for that; two children must not run at the same time.
                text = "cannot start: the previous engine is still stopping"
                raise inspection.StartObstacle("vram-busy", text, hold=True, phase="ending")
            if run.child is None:
                await run.end_earlier_engine()
            for _ in range(MAX_REPLANS):
                coming = self._planner.next(
                    machine.config,
                    self._modes.mode,
                    action.plan,
                    living,
                    run.mode,
                    refused=machine.snapshot.refusal is not None,
                )
                plan, endpoint = await machine.part.plan(coming, living is not None)
                if run.child is not None:
                    await self._check_other_port(endpoint)
                    break
                await self._prepare(plan, endpoint, coming.made or self._planner.prepared)
                if not (outdated := machine.part.outdated()):
                    break
            else:
                raise inspection.StartObstacle(
                    "node-missing", f"cannot start: {outdated}", hold=True
                )
        except Exception as problem:
            refused = _refusal(number, problem)
            machine.part.refused(refused.finding)
            event: LifecycleEvent = refused
        else:
            if run.child is None:
                run.endpoint = endpoint
            # A serving engine continues instead of an abandoned plan; without an engine, the plan
            # is started.
            if run.child is None or plan.identity != machine.snapshot.abandoned:
                self._planner.take(coming)
            event = Planned(at=now(), chance=random.random(), inspection=number, plan=plan)
        machine.apply(event)

    async def _check_other_port(self, endpoint: Endpoint) -> None:
        """Raise inspection.StartObstacle if a living engine is to move to a port that is taken."""
        now_at = self._run.endpoint
        if self._machine.part.answers and now_at is not None and endpoint.port != now_at.port:
            await asyncio.to_thread(inspection.check_port, endpoint.port)

    async def _prepare(self, plan: Plan, endpoint: Endpoint, made: PreparedStart | None) -> None:
        """Check the plan's requirements apart from memory; raises inspection.StartObstacle."""
        if self._machine.part.answers:
            await asyncio.to_thread(inspection.check_port, endpoint.port)
        if made is not None:
            await self._run.share_caches(plan, made.inventory.engine)
            await self._run.check_all_reduce(plan, made.inventory)


def _refusal(number: int, problem: Exception) -> StartRefused:
    """Why an inspection found that no engine can start."""
    limit = limits.limit_reached(problem)
    if isinstance(problem, inspection.StartObstacle):
        finding, hold = problem.finding, problem.hold or bool(limit)
    elif isinstance(problem, ConfigError):
        # The key file is reread for each engine: it may still be about to appear.
        finding, hold = Finding("bad-arguments", str(problem), "plan"), True
    elif limit:
        text = f"cannot check whether the engine can start: {limit}"
        finding, hold = Finding("unknown", text, "plan"), True
    else:
        # A bug of ours with this model or machine must not cost a serving engine.
        traceback.print_exception(problem)
        fault = f"{type(problem).__name__} in caovand: {problem}"
        text = f"cannot plan: {fault}; please report it"
        finding, hold = Finding("unknown", text, "plan"), False
    return StartRefused(
        at=now(), chance=random.random(), inspection=number, finding=finding, hold=hold
    )
