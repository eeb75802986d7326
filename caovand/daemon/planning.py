"""The engine's plan between looks: made from what is found, kept with what it was made from."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from caovand.adapters import config_file
from caovand.adapters.directories import Directories
from caovand.adapters.http import Endpoint
from caovand.core.config import Config, Mode
from caovand.core.engine import Engine
from caovand.core.facts import occupancy
from caovand.core.facts.inventory import Gpu, Inventory, Network, Node
from caovand.core.healing import degraded
from caovand.core.plan import Plan
from caovand.core.problem import Problem
from caovand.daemon import inspection
from caovand.daemon.degraded_plan import PlanMemory
from caovand.daemon.inspection import PlanRequest, Prepared


class SlotPlanner:
    """Makes a slot's plans; `prepared` is the last with its inventory, None before the first.

    `tuned` is the drafting depth to plan with instead of a plan's own, None for that.
    """

    def __init__(
        self,
        engine: Engine,
        directories: Directories,
        environ: Mapping[str, str],
        memory: PlanMemory,
        source: Path | None = None,
        tuned: Callable[[Plan], int | None] | None = None,
    ) -> None:
        self._engine, self._directories = engine, directories
        self._environ, self._memory = environ, memory
        self._source, self._tuned = source, tuned
        self.prepared: Prepared | None = None
        self._salt = os.urandom(16)

    @property
    def inventory(self) -> Inventory | None:
        """What the last plan was made from."""
        return self.prepared.inventory if self.prepared else None

    async def plan(
        self,
        config: Config,
        mode: Mode | None,
        again: Plan | None,
        living: Plan | None,
        living_mode: Mode,
    ) -> tuple[Plan, Endpoint]:
        """The plan of the next engine, and where it will answer.

        `again` is a plan to be tried once more, `living` that of an engine that runs now, made in
        `living_mode`. Raises inspection.Obstacle and, where the key's file is bad, ConfigError.
        """
        await asyncio.to_thread(inspection.check_kind, config, self._engine)
        last = self.prepared
        beside = last if living is not None else None
        good = self._memory.document(living, beside.fingerprint if beside else "", living_mode)
        before = beside.inventory if beside else None
        wishes = PlanRequest(config, mode, self._environ, good, before, self._source, self._tuned)
        if again is not None and last and last.mode != wishes.chosen_mode:
            # `mode --defer` waited for this start; the ladder's other steps stay.
            good = degraded.to_document(again, last.fingerprint, last.mode)
            wishes, again = replace(wishes, good_plan=good), None
        if again is None or last is None:
            last = await asyncio.to_thread(inspection.prepare, wishes, self._directories)
            self.prepared = last
            plan = last.plan
        else:
            # It needs no second look: engine and model are its own.
            await asyncio.to_thread(inspection.check_cards, again, last.inventory)
            plan = again
        key = config_file.api_key(config, plan.extra_args, self._environ, self._engine.arguments)
        mark = hashlib.sha256(self._salt + key.encode()).hexdigest()[:16] if key else ""
        tls = plan.value("ssl_certfile") is not None
        endpoint = Endpoint(str(plan.value("host")), int(plan.value("port")), key, tls)
        return replace(plan, key=mark), endpoint

    async def over(self, plan: Plan, others: tuple[Node, ...], link: Network | None = None) -> Plan:
        """The plan for these nodes, which `link` joins; another one where they are not those that
        it was made for. Raises Obstacle."""
        last = self.prepared
        assert last is not None
        assert last.request is not None
        before, machine = last.inventory, replace(last.inventory, others=others, link=link)
        if link == before.link and list(map(_cards, others)) == list(map(_cards, before.others)):
            self.prepared = replace(last, inventory=machine)
            return plan
        self.prepared = await asyncio.to_thread(inspection.planned_for, last.request, machine)
        return replace(self.prepared.plan, key=plan.key)

    async def look(self, config: Config) -> Inventory:
        """Inspect engine, model and machine; raises inspection.Obstacle."""
        await asyncio.to_thread(inspection.check_kind, config, self._engine)
        wishes = PlanRequest(config, None, self._environ, source=self._source)
        return await asyncio.to_thread(inspection.look, wishes, self._directories)

    def adopt(self, plan: Plan, inventory: Inventory, mode: Mode) -> None:
        """Take a plan that another node made."""
        self.prepared = Prepared(plan, inventory, "", mode)

    def conflicts(self, plan: Plan) -> Sequence[Problem]:
        """What of a plan cannot run on these cards, as the planner knows."""
        if self.inventory is None:
            return ()
        return self._engine.planning.conflicts(plan, self.inventory)

    def used(self, chosen: Sequence[int] | None) -> occupancy.Used:
        """What was in use of those cards before the engine was started."""
        gpus = self.inventory.gpus if self.inventory else ()
        return occupancy.used([gpu for gpu in gpus if gpu.index in self.cards(chosen)])

    def cards(self, chosen: Sequence[int] | None) -> frozenset[int]:
        """The cards the engine may use, by NVML's index; `chosen` None are all."""
        seen = {gpu.index for gpu in self.inventory.gpus} if self.inventory else set()
        return frozenset(seen if chosen is None else seen & set(chosen))


def _cards(node: Node) -> tuple[Gpu, ...]:
    return node.gpus
