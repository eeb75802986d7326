"""The head starts, proves and stops the ranks of all nodes in step."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from caovand.adapters.network.cluster_link import HeadLink, numeric_address
from caovand.adapters.network.http import Endpoint
from caovand.core import addresses
from caovand.core.cluster import checks, evidence, messages
from caovand.core.cluster.finding import finding_text
from caovand.core.cluster.messages import EACH_S, LOST_S, Order, Report
from caovand.core.cluster.node import NodeFacts
from caovand.core.cluster.node_document import from_document
from caovand.core.document import BadDocument
from caovand.core.healing.failure import Failure, Finding
from caovand.core.lifecycle import events
from caovand.core.lifecycle.state import State
from caovand.core.plan import Plan
from caovand.core.problem import ProblemError
from caovand.core.reporting.report import forecast_figures
from caovand.daemon.cluster import here
from caovand.daemon.cluster.document import with_checks
from caovand.daemon.cluster.evidence import WAIT_S, Collector
from caovand.daemon.cluster.here import NodeEntry
from caovand.daemon.cluster.links import Links
from caovand.daemon.cluster.part import (
    ClusterSlot,
    Membership,
    Notices,
    Part,
    PlanInSteps,
    Signal,
    link_when_possible,
)
from caovand.daemon.cluster.selection import TeamSelection
from caovand.daemon.cluster.team import Quorum, Team, unended_text
from caovand.daemon.cluster.workers import Worker, Workers
from caovand.daemon.records.chronicle import Then
from caovand.daemon.shared import now

ENDING_S = 60.0
"""Time limit for a worker to stop its rank."""


class HeadPart(Part):
    """The head, which workers join at `membership.head`.

    `executor` is [cluster] executor, which starts the ranks.
    """

    role = "head"

    def __init__(
        self, membership: Membership, quorum: Quorum, slot: ClusterSlot, executor: str = "mp"
    ) -> None:
        self._membership, self._quorum, self._slot = membership, quorum, slot
        self._boot = os.urandom(8).hex()
        self._changed, self._workers_changed = Signal(), Signal()
        self._workers = Workers(membership.name)
        self._links = Links(self._workers, *membership.rendezvous, self._changed)
        self._selection = TeamSelection(
            membership, quorum, self._workers, self._links, slot, executor, self._workers_changed
        )
        self._start, self._generation = "", 0
        self._plan: Plan | None = None
        self._notices = Notices(slot.notice)
        self._since = now()
        self._own_ranks = here.Ranks(slot, membership.nodes)
        self._latest = ""  # the last start, even once it has ended
        self._evidence = Collector(slot.failures.store, slot.notice, self._silence)

    async def begin(self) -> None:
        """Receive reports and send each worker its order, until cancelled."""
        link = await link_when_possible(self._listen, self._notices)
        try:
            while True:
                self._check_presence()
                self._selection.reconsider(bool(self._start))
                self._own_ranks.refresh()
                refusals = dict(self._workers.refusals())
                for name, worker in list(self._workers.by_name.items()):
                    if worker.identity in refusals:
                        continue
                    order = self._evidence.ask(name, self._order(name))
                    frame = messages.encode_order(order)
                    worker.disconnected = not await link.send(worker.identity, frame)
                for identity, reason in refusals.items():
                    order = replace(self._empty_order(), refusal=reason)
                    await link.send(identity, messages.encode_order(order))
                for rival in self._workers.take_freed():
                    self._hear(rival.identity, rival.report, rival.facts)
                await self._changed.wait(EACH_S)
        finally:
            link.close()

    async def _listen(self) -> HeadLink:
        try:
            link = await self._open_link()
        except ProblemError as problem:
            self._workers.listen_failure = checks.cannot_listen(problem.problem)
            raise
        self._workers.listen_failure = None
        return link

    async def _open_link(self) -> HeadLink:
        head = self._membership.head
        address = await asyncio.to_thread(numeric_address, head)
        if addresses.is_loopback(addresses.split_address(address)[0]):
            fact = f"{head} is this machine's own loopback address, {address}"
            remedy = "set [cluster] head to an address that workers can reach"
            raise ProblemError("listen for workers", fact, remedy)
        runtime = self._slot.directories.runtime
        return HeadLink(address, self._membership.pairs, self._on_frame, runtime)

    # -- receiving ----------------------------------------------------------------------------

    def _on_frame(self, identity: bytes, frame: bytes) -> None:
        if frame.startswith(evidence.MARK):
            self._take_evidence(identity, frame)
            return
        try:
            report = messages.decode_report(frame)
            facts = from_document(report.facts) if report.facts else None
        except BadDocument as problem:
            self._notices.publish(finding_text(self._workers.note_unread(identity, frame, problem)))
            return
        self._workers.note_read(identity)
        self._hear(identity, report, facts)

    def _take_evidence(self, identity: bytes, frame: bytes) -> None:
        """Accept the evidence of a worker that has reported before."""
        if (name := self._workers.name_of(identity)) is not None:
            try:
                self._evidence.take(name, frame)
            except BadDocument as problem:
                self._notices.publish(f"cannot read the evidence of node {name}: {problem}")

    def _hear(self, identity: bytes, report: Report, facts: NodeFacts | None) -> None:
        if self._workers.is_rival(report):
            self._report_duplicate_name(Worker(identity, report, now(), now(), facts))
            return
        news = self._workers.hear(identity, report, facts, self._team.workers)
        if news == "full":
            return
        name = report.name
        self._links.hear(name, report.probe)
        if news == "joined":
            self._slot.notice("cluster", f"node {name} joined")
        if news != "same":
            self._workers_changed.wake()
            self._changed.wake()
            self._selection.retry()
        if self._start and name in self._team.workers:
            if report.boot != self._team.workers[name].boot:
                self._fail("node-lost", f"node {name}: its daemon was restarted")
            elif report.failed == self._start and report.finding is not None:
                finding = report.finding
                self._fail(finding.failure, f"node {name}: {finding.text}", finding)
            elif report.stopped:
                self._fail("node-lost", f"node {name}: stopped by its operator")

    def _report_duplicate_name(self, rival: Worker) -> None:
        """Report a worker that uses the name of another worker, or of the head."""
        if self._workers.contest(rival):
            self._slot.notice("cluster", finding_text(checks.duplicate_names(rival.name)))
            self._changed.wake()
        elif not rival.refused:
            self._changed.wake()  # so that both answer

    def _check_presence(self) -> None:
        """Stop waiting for absent workers, and cancel a start that has lost one."""
        workers = self._workers.by_name
        self._links.abandon_absent(
            {name: one.boot for name, one in workers.items() if not one.absent}
        )
        for name in self._team.workers if self._start else ():
            if workers[name].lost:
                self._fail("node-lost", f"node {name}: silent for {LOST_S:.0f} s")

    def _fail(self, failure: Failure, text: str, reported: Finding | None = None) -> None:
        """End all ranks because of an event on another node, once."""
        if not self._start:
            return
        self._start = ""
        phase = self._slot.snapshot.phase or "serving"
        finding = Finding(failure, text, phase)
        if reported is not None:
            finding = replace(reported, text=text, line=0)
        failed = events.Failed(at=now(), generation=self._generation, finding=finding)
        self._slot.apply(failed)

    # -- the start --------------------------------------------------------------------------

    def _order(self, name: str) -> Order:
        order, rank = self._empty_order(), self._team.ranks.get(name)
        if not self._start or rank is None or self._plan is None:
            return replace(order, probe=self._links.probe_for(name))
        snapshot = self._slot.snapshot
        return replace(
            order,
            start=self._start,
            plan=self._plan,
            rank=rank,
            proven=snapshot.state is State.SERVING,
            phase=snapshot.phase,
            progress=snapshot.progress,
            detail=snapshot.detail,
        )

    def _empty_order(self) -> Order:
        return Order(head=self._boot, name=self._membership.name, sent=now())

    async def plan(self, next_plan: PlanInSteps, living: bool) -> tuple[Plan, Endpoint]:
        """The plan over all nodes; raises StartObstacle while one is missing or differs."""
        return await self._selection.plan(next_plan, living)

    def outdated(self) -> str:
        """Chosen workers that have changed since: checks and planning take minutes."""
        return self._team.outdated(self._workers.by_name)

    async def check_links(self) -> None:
        """Check the links to all workers, unless an engine runs."""
        await self._selection.check_links()

    @property
    def _team(self) -> Team:
        return self._selection.team

    def own(self, plan: Plan) -> Plan:
        """The head's part of the plan: rank 0."""
        if self._team.count == 1:
            return plan
        others = tuple(worker.address for worker in self._team.workers.values())
        place = replace(self._selection.place, others=others, token=self._membership.pairs.token)
        return self._membership.nodes.place(plan, place)

    def started(self, plan: Plan, generation: int) -> None:
        """Let the workers start their ranks: the engine is starting here."""
        self._generation, self._plan = generation, plan
        self._start = self._latest = f"{self._boot}-{generation}"
        self._changed.wake()

    def recorded(self, finding: Finding) -> tuple[Mapping[str, int], Then]:
        """Collect the workers' evidence of the failed start."""
        self._changed.wake()
        return self._team.ranks, self._evidence.begin(self._latest, self._team.ranks, finding)

    def _silence(self, name: str) -> str:
        """Describe a worker that sends no evidence."""
        worker = self._workers.by_name.get(name)
        if worker is None or worker.lost:
            return "the node is silent: check that its machine and caovan are up"
        return f"no reply within {WAIT_S:.0f} s"

    async def ended(self, *, left: bool) -> None:
        """Make the workers stop their ranks; return once they have, or are lost."""
        self._start = ""
        self._changed.wake()
        until = now() + ENDING_S
        while now() < until:
            busy = [name for name in self._team.workers if self._runs_rank(name)]
            if not busy:
                return
            await self._workers_changed.wait(EACH_S)
        for name in busy:
            self._slot.notice("noticed", unended_text(self._workers.by_name[name]))

    def _runs_rank(self, name: str) -> bool:
        worker = self._workers.by_name.get(name)
        return worker is not None and not worker.lost and bool(worker.report.running)

    # -- reporting ----------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """The `status` summary: the number of nodes, and which have joined."""
        return {
            "role": self.role, "name": self._membership.name,
            "nodes": self._quorum.nodes, "missing": self._missing,
            "serving": self._team.count if self._start else 0,
            "joined": sorted(self._workers.present),
            "lost": sorted(name for name, one in self._workers.by_name.items() if one.lost),
            "refused": sorted({one.name for one in self._workers.refused()}),
        }  # fmt: skip

    @property
    def _missing(self) -> int:
        return max(self._quorum.nodes - 1 - len(self._workers.present), 0)

    def describe(self) -> dict[str, Any]:
        """The document of the op `cluster`."""
        at, name = now(), self._membership.name
        host, _ = self._membership.rendezvous
        ranks = self._own_ranks.known
        facts = self._selection.facts
        own = here.own_entry(self._slot, name, at - self._since, facts, ranks, host)
        others = [
            NodeEntry(
                name,
                "lost" if worker.lost else "joined",
                at - (worker.heard if worker.lost else worker.since),
                worker.facts,
                worker.report.ranks,
                link=worker.link,
                sizes=worker.report.sizes,
                network=worker.report.network,
            ).document()
            for name, worker in sorted(self._workers.by_name.items())
        ]
        refused = [
            NodeEntry(one.name, "refused", at - one.since, one.facts, one.report.ranks).document()
            for one in self._workers.refused()
        ]
        runs = bool(self._start)
        # Every worker's check repeats a finding about the head alone: show it once.
        nodes = {finding: name for name, finding in reversed(self._selection.findings(runs))}
        document = {
            "role": self.role, "name": self._membership.name, "head": self._membership.head,
            "nodes": [own, *others, *refused], "missing": self._missing,
            "planned": self._selection.planned(runs),
            "forecast": forecast_figures(self._slot.run.forecast),
        }  # fmt: skip
        findings = [(name, finding) for finding, name in reversed(nodes.items())]
        return with_checks(document, findings)
