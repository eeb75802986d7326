"""Select the workers of a start: they agree with the head, and all nodes reach each other."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from caovand.adapters.network.http import Endpoint
from caovand.core.cluster import checks
from caovand.core.cluster.checks import Requirements
from caovand.core.cluster.finding import finding_text
from caovand.core.cluster.messages import EACH_S
from caovand.core.cluster.node import NodeFacts
from caovand.core.cluster.rdma import no_rdma
from caovand.core.engine.record import NodePlace
from caovand.core.facts.checks import CheckResult
from caovand.core.facts.inventory import Inventory
from caovand.core.facts.network import Network
from caovand.core.healing.failure import Failure
from caovand.core.lifecycle import events
from caovand.core.lifecycle.state import State
from caovand.core.plan import Plan, Unplannable
from caovand.core.problem import Problem
from caovand.daemon.cluster import here
from caovand.daemon.cluster.links import Links
from caovand.daemon.cluster.part import (
    IDLE,
    ClusterSlot,
    Membership,
    PlanInSteps,
    Signal,
    is_stopped,
    state_of,
)
from caovand.daemon.cluster.team import (
    Quorum,
    Team,
    cannot_compare,
    choose,
    lacks_facts,
    network_of,
)
from caovand.daemon.cluster.workers import Workers
from caovand.daemon.shared import now
from caovand.daemon.start.inspection import StartObstacle, check_port, obstacle_of

REFRESH_S = 10.0
"""The time that a start waits for workers to re-inspect their cards' free memory."""
INSPECTING = frozenset({State.RECYCLING, State.STARTING})
"""A worker's states during an inspection; HOLD follows, with the result."""
WAITING_FAILURES: frozenset[Failure] = frozenset({"node-missing", "node-unfit"})
"""Failures that hold a start until something changes on another node."""


class TeamSelection:
    """The `team` of the current or next start, selected from the `workers` of a head.

    `executor` starts the ranks. A worker's change wakes `changed`. `place` is where the head's part
    of the last plan runs.
    """

    def __init__(
        self, membership: Membership, quorum: Quorum, workers: Workers, links: Links,
        slot: ClusterSlot, executor: str, changed: Signal,
    ) -> None:  # fmt: skip
        self.team = Team()
        self.facts: NodeFacts | None = None  # of the head
        self.place = NodePlace(0, "", "")
        self._membership, self._quorum, self._executor = membership, quorum, executor
        self._workers, self._links, self._slot = workers, links, slot
        self._changed = changed
        self._refusal: Problem | None = None  # why the engine here cannot serve over nodes
        self._too_few = False  # whether the last attempt had too few nodes
        self._rdma_obstacle = ""
        self._required = Requirements(package=membership.nodes.packages.get(executor))

    async def plan(self, next_plan: PlanInSteps, living: bool) -> tuple[Plan, Endpoint]:
        """The plan over all nodes; raises StartObstacle while one is missing or differs.

        Workers are chosen first, because whether a model fits depends on the cards of all.
        """
        nodes = self._membership.nodes
        self._too_few = False
        try:
            inventory, facts = await self._inspect(next_plan)
        except StartObstacle:
            if not living:
                self.facts = None  # a machine that cannot be inspected cannot serve
            raise
        if not living:
            async with self._links.turn:
                shortage = await self._choose(facts)
            if shortage:
                text = f"starts on {self.team.count} of {self._quorum.nodes} nodes: {shortage}"
                self._slot.notice("cluster", text)
        if self._refusal and self.team.count > 1:  # since the living engine started
            raise StartObstacle("bad-arguments", str(self._refusal), hold=True)
        if link := self._network(self.team.workers):
            link = replace(link, rdma=not self._rdma_obstacle)
        plan, endpoint = await next_plan.plan(self.team.nodes, link)
        if self.team.count == 1:
            self._required = replace(self._required, all_reduces=False)
            return plan, endpoint
        try:
            spread = nodes.spread(
                plan, replace(inventory, others=self.team.nodes), *self._membership.rendezvous,
                self._rdma_obstacle, self._executor, facts.address,
            )  # fmt: skip
        except Unplannable as problem:
            raise obstacle_of(problem) from problem
        self.place = NodePlace(0, facts.address, facts.interface)
        self._required = replace(
            self._required,
            all_reduces=nodes.all_reduces_over_link(spread),
            ranks=len(spread.cards or ()),
        )
        return spread, endpoint

    async def _inspect(self, next_plan: PlanInSteps) -> tuple[Inventory, NodeFacts]:
        """Inspect the machine and make the result the head's facts. Raises StartObstacle."""
        inventory = await next_plan.inspect()
        self._refusal = self._membership.nodes.refusal(self._executor, inventory.engine)
        if self._refusal and self._quorum.strict:
            raise StartObstacle("bad-arguments", str(self._refusal), hold=True)
        try:
            facts = self.facts = await here.facts(self._membership, self._slot, inventory)
        except Unplannable as problem:
            raise obstacle_of(problem) from problem
        return inventory, facts

    # -- choosing ---------------------------------------------------------------------------

    async def _choose(self, facts: NodeFacts) -> str:
        """Choose the workers of the next start by their links; return and raise like `_select`."""
        self._workers.forget_failed_links()
        shortage = self._select()
        _, port = self._membership.rendezvous
        await asyncio.to_thread(check_port, port, "[cluster] head, which is one port below")
        await self._await_inspections()
        probed: set[tuple[str, str]] = set()
        while not all((name, one.boot) in probed for name, one in self.team.workers.items()):
            fit = self._choose_fit(wanted=len(self._workers.by_name)).workers
            probed.update((name, worker.boot) for name, worker in fit.items())
            await self._links.probe_workers(facts.address, fit.values())
            shortage = self._select()
        self._quorum.on_start(self.team.count)
        self._rdma_obstacle = self._find_rdma_obstacle(self.team.workers)
        return shortage

    async def _await_inspections(self) -> None:
        """Wait for workers whose rank has just exited and whose facts are older than that."""
        until = now() + REFRESH_S
        while now() < until and any(map(self._is_inspecting, self.team.workers)):
            await self._changed.wait(EACH_S)

    def _is_inspecting(self, name: str) -> bool:
        worker = self._workers.present.get(name)
        if worker is None or worker.report.running:
            return False
        return worker.report.state in INSPECTING

    def _select(self) -> str:
        """Choose the workers of the next start; return why they are fewer than all. Raises
        StartObstacle."""
        team = self._propose()
        if self._quorum.must_wait(team.count):
            self._too_few = True
            raise StartObstacle(team.failure, f"cannot start: {team.shortage}", hold=True)
        self.team = team
        return team.shortage

    def _propose(self, ours: Collection[str] = (), without: Collection[str] = ()) -> Team:
        """Like `_fit`, but without any worker if the engine here cannot serve over nodes."""
        if self._refusal:
            return Team({}, f"{self._refusal.fact}; {self._refusal.remedy}", "node-unfit")
        return self._choose_fit(ours, without)

    def _choose_fit(
        self, ours: Collection[str] = (), without: Collection[str] = (), wanted: int = 0
    ) -> Team:
        """The workers that a start can use, and why they are fewer than `wanted`."""
        unheard = [finding_text(one) for _, one in self._workers.unheard()]
        known = self._workers.by_name
        workers = {name: one for name, one in known.items() if name not in without}
        wanted = wanted or self._quorum.nodes - 1
        return choose(workers, self._compare(), wanted, unheard, ours)

    async def check_links(self) -> None:
        """Check all links, unless an engine runs or is about to."""
        async with self._links.turn:
            snapshot = self._slot.snapshot
            idle = snapshot.state in (*IDLE, State.STOPPED) and not snapshot.inspecting
            if not idle or here.engine_pids(self._slot) or self.facts is None:
                return
            present = self._workers.present.values()
            if free := [one for one in present if one.facts and not one.report.running]:
                await self._links.probe_workers(self.facts.address, free)
                self.retry()

    def retry(self) -> None:
        """Retry at once everything that waits for a node to change."""
        snapshot = self._slot.snapshot
        waits = snapshot.finding is not None and snapshot.finding.failure in WAITING_FAILURES
        if snapshot.state is State.HOLD and waits and not snapshot.inspecting:
            self._slot.apply(events.Reconfigured(at=now(), changed=False))

    def reconsider(self, runs: bool) -> None:
        """If fewer nodes may serve: start with those, and include others once they are back.

        `runs` means that the last start's engine is still running.
        """
        snapshot = self._slot.snapshot
        if self._quorum.strict or snapshot.inspecting:
            return
        if snapshot.state is State.HOLD:
            # Only if there were too few nodes: other reasons are re-inspected at their own
            # intervals.
            if self._too_few and not self._quorum.must_wait(self._propose().count):
                self._too_few = False
                self.retry()
        elif runs and snapshot.state is State.SERVING and self.team.count < self._quorum.nodes:
            # Probes need an engine's port: a failed link stays failed until a probe finds
            # otherwise.
            known, ours = self._workers.by_name, self.team.workers
            failed = {name for name in known.keys() - ours if known[name].link_failed}
            chosen = self._propose(ours, failed).workers
            back = [
                name
                for name in chosen.keys() - ours
                if self._quorum.justifies_restart(chosen[name])
            ]
            if back and self._slot.figures.idle and not self._slot.run.busy:
                text = f"node {', '.join(sorted(back))} is back"
                self._slot.apply_operator_event(events.Restart(at=now(), reason=text, by="head"))

    # -- comparing --------------------------------------------------------------------------

    def _compare(self, tcp_only: bool = False) -> list[tuple[str, CheckResult]]:
        """The findings about the present workers, by name; `tcp_only` only affects warnings."""
        required = replace(self._required, tcp_only=tcp_only)
        return [
            (name, result)
            for name, worker in self._workers.present.items()
            if self.facts is not None and worker.facts is not None
            for result in checks.compare(self.facts, worker.facts, worker.measured, required)
        ]

    def _find_rdma_obstacle(self, names: Collection[str]) -> str:
        """Find why the head and these workers cannot use InfiniBand or RoCE; "" if they can."""
        facts = (self.facts, *(self._workers.by_name[name].facts for name in names))
        configured = self._membership.nodes.no_rdma(dict(self._slot.config.engine.env))
        return configured or no_rdma([one for one in facts if one is not None])

    def _network(self, names: Collection[str]) -> Network | None:
        """The network between the head and these workers; None if unknown."""
        return network_of(self.facts, [self._workers.by_name.get(name) for name in names])

    def _names(self, runs: bool) -> list[str]:
        """Workers of the running start, else of the next one, by rank."""
        return list((self.team if runs else self._propose()).workers)

    def findings(self, runs: bool) -> list[tuple[str, CheckResult]]:
        """All known problems, each with the node that it concerns.

        A problem of the head alone is repeated for each worker.
        """
        tcp_only = bool(self._find_rdma_obstacle(self._names(runs)))
        return [*self._workers.unheard(), *self._uncompared(), *self._compare(tcp_only)]

    def _uncompared(self) -> Iterator[tuple[str, CheckResult]]:
        """Present workers that cannot be compared, or are not meant to serve."""
        if self.facts is None:
            snapshot = self._slot.snapshot
            state, stopped = state_of(snapshot), is_stopped(snapshot)
            yield self._membership.name, lacks_facts(self._membership.name, state, stopped=stopped)
        for name, one in self._workers.present.items():
            if one.facts is None or one.report.stopped:
                yield name, cannot_compare(one)

    def planned(self, runs: bool) -> dict[str, Any]:
        """Workers of the running start, else of the next one, by rank; the link between them; and
        the smallest host memory."""
        names = self._names(runs)
        link = self._network(names)
        facts = (self._workers.by_name[name].facts for name in names)
        return {
            "nodes": names,
            "ram_mib": min((one.ram_mib for one in facts if one), default=None),
            "link": link and {"bytes_s": link.bytes_s, "round_trip_s": link.round_trip_s},
            "no_rdma": self._find_rdma_obstacle(names) if names and self.facts else "",
        }
