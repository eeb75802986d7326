"""An engine's plan between inspections, kept with the inventory it was made from."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from caovand.adapters.files import config_file
from caovand.adapters.files.directories import Directories
from caovand.adapters.network.http import Endpoint
from caovand.core.config.schema import Config, Mode
from caovand.core.engine.record import Engine
from caovand.core.facts import occupancy
from caovand.core.facts.inventory import Inventory, Node
from caovand.core.facts.network import Network
from caovand.core.healing import degraded
from caovand.core.plan import Plan
from caovand.core.problem import Problem
from caovand.daemon.start import inspection
from caovand.daemon.start.degraded_plan import PlanMemory
from caovand.daemon.start.inspection import PreparedStart
from caovand.preparation.plan_request import PlanRequest


class SlotPlanner:
    """Makes a slot's plans; `prepared` is the last one with its inventory, None before the first.

    `tuned` returns the draft depth that replaces a plan's own, None to keep it.
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
        self.prepared: PreparedStart | None = None
        self._request: PlanRequest | None = None  # the request that led to `prepared`
        self._served: tuple[PreparedStart, PlanRequest] | None = None
        self._salt = os.urandom(16)

    @property
    def inventory(self) -> Inventory | None:
        """The inventory of the last plan."""
        return self.prepared.inventory if self.prepared else None

    def next(
        self,
        config: Config,
        mode: Mode | None,
        again: Plan | None,
        living: Plan | None,
        living_mode: Mode,
        *,
        refused: bool = False,
    ) -> NextPlan:
        """A request for the next engine's plan.

        `again` is a plan to retry, `living` the plan of a running engine, made in `living_mode`.
        With `refused`, the configuration is not in effect, and `again` starts with the
        configuration that served last.
        """
        if refused and again is not None and self._served is not None:
            return NextPlan(self, self._served[1], again, self._served[0])
        last = self.prepared
        running = last if living is not None else None
        good = self._memory.document(living, running.fingerprint if running else "", living_mode)
        before = running.inventory if running else None
        request = PlanRequest(config, mode, self._environ, good, before, self._source, self._tuned)
        return NextPlan(self, request, again, last)

    def take(self, coming: NextPlan) -> None:
        """Adopt the result for the next engine."""
        if coming.made is not None:
            self.prepared, self._request = coming.made, coming.request

    def record_served(self) -> None:
        """Record that the last plan serves, so that it can be the fallback."""
        if self.prepared is not None and self._request is not None:
            self._served = self.prepared, self._request

    async def inspect_for(self, config: Config, *, living: bool) -> Inventory:
        """Inspect engine, model and machine; raises inspection.StartObstacle.

        The card memory that a `living` engine uses counts as free for its own plan.
        """
        before = self.prepared.inventory if living and self.prepared else None
        request = PlanRequest(config, None, self._environ, before=before, source=self._source)
        return await self.inspect(request)

    async def inspect(self, request: PlanRequest) -> Inventory:
        """Inspect engine, model and machine for a request; raises inspection.StartObstacle."""
        await self.check_kind(request.config)
        return await asyncio.to_thread(inspection.inspect, request, self._directories)

    async def check_kind(self, config: Config) -> None:
        """Raise inspection.StartObstacle if the model is for another engine than this daemon's."""
        await asyncio.to_thread(inspection.check_kind, config, self._engine)

    def endpoint(self, plan: Plan, request: PlanRequest) -> tuple[Plan, Endpoint]:
        """The plan with its key's digest, and its engine's endpoint; raises ConfigError for a bad
        key file."""
        key = config_file.api_key(
            request.config, plan.extra_args, self._environ, self._engine.arguments
        )
        mark = hashlib.sha256(self._salt + key.encode()).hexdigest()[:16] if key else ""
        tls = plan.value("ssl_certfile") is not None
        endpoint = Endpoint(str(plan.value("host")), int(plan.value("port")), key, tls)
        return replace(plan, key=mark), endpoint

    def adopt(self, plan: Plan, inventory: Inventory, mode: Mode) -> None:
        """Adopt a plan that another node made."""
        self.prepared, self._request = PreparedStart(plan, inventory, "", mode), None

    def conflicts(self, plan: Plan) -> Sequence[Problem]:
        """Settings of a plan that cannot work on these cards."""
        if self.inventory is None:
            return ()
        return self._engine.planning.conflicts(plan, self.inventory)

    def used_memory(self, config: Config) -> occupancy.Used:
        """Memory in use on the engine's cards before it started."""
        gpus, cards = self.inventory.gpus if self.inventory else (), self.cards(config)
        return occupancy.used_by_card([gpu for gpu in gpus if gpu.index in cards])

    def cards(self, config: Config) -> frozenset[int]:
        """Cards that the engine may use, by NVML's index; for a plan from another node, `config`
        decides."""
        chosen = (self._request.config if self._request else config).engine.gpus
        seen = {gpu.index for gpu in self.inventory.gpus} if self.inventory else set()
        return frozenset(seen if chosen is None else seen & set(chosen))


class NextPlan:
    """The next engine's plan in two steps: `inspect`, then `plan` for the result.

    In between, a head chooses the other nodes. `made` is the result: the planner keeps it only once
    it is adopted, because `again` refers to the last result that was adopted.
    """

    def __init__(
        self,
        planner: SlotPlanner,
        request: PlanRequest,
        again: Plan | None,
        last: PreparedStart | None,
    ) -> None:
        self.request, self._planner = request, planner
        self._before = planner.inventory
        self._again: tuple[Plan, PreparedStart] | None = None
        self._machine: Inventory | None = None
        self.made: PreparedStart | None = None
        if again is not None and last is not None:
            self._again = again, last
            if last.mode != request.chosen_mode:
                self._keep_steps()  # `mode --defer` waited for this start

    async def inspect(self) -> Inventory:
        """Inspect this machine; raises inspection.StartObstacle, or ConfigError for a bad key."""
        if self._again is None:
            await asyncio.to_thread(inspection.check_cheap, self.request)
            self._machine = await self._planner.inspect(self.request)
        else:
            # Engine and model are unchanged: only the cards are checked.
            again, last = self._again
            await self._planner.check_kind(self.request.config)
            await asyncio.to_thread(inspection.check_cards, again, last.inventory)
            self._machine = last.inventory
        return self._machine

    async def plan(
        self, others: tuple[Node, ...] = (), link: Network | None = None
    ) -> tuple[Plan, Endpoint]:
        """The plan for this machine and `others`, connected by `link`, and its endpoint.

        Raises inspection.StartObstacle, or ConfigError for a bad key file.
        """
        before = self._before
        if before is not None and link is not None and link.near(before.link):
            link = before.link  # jitter of measurements does not change the plan
        if self._again is not None and not _same(others, link, self._again[1].inventory):
            self._keep_steps()
            await self.inspect()
        assert self._machine is not None
        machine = replace(self._machine, others=others, link=link)
        if self._again is not None:
            again, last = self._again
            self.made = replace(last, plan=again, inventory=machine)
        else:
            self.made = await asyncio.to_thread(inspection.planned_for, self.request, machine)
        return self._planner.endpoint(self.made.plan, self.request)

    def _keep_steps(self) -> None:
        """Plan anew instead of retrying the plan; keep the ladder's steps that still apply."""
        assert self._again is not None
        again, last = self._again
        good = degraded.to_document(again, last.fingerprint, last.mode)
        self.request, self._again = replace(self.request, good_plan=good), None


def _same(others: tuple[Node, ...], link: Network | None, before: Inventory) -> bool:
    """Whether a plan from `before` was made for equivalent nodes, whatever their names.

    Free memory on their cards does not count, as for local cards: that is the ladder's concern.
    """
    cards = [
        [[replace(gpu, free_mib=0) for gpu in node.gpus] for node in nodes]
        for nodes in (others, before.others)
    ]
    return cards[0] == cards[1] and link == before.link
