"""The head starts, proves and ends the ranks of all nodes in step."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from caovand.adapters.cluster_key import Pairs
from caovand.adapters.cluster_link import HeadLink, numeric
from caovand.adapters.http import Endpoint
from caovand.core import addresses
from caovand.core.cluster import checks, evidence, messages
from caovand.core.cluster.finding import in_words
from caovand.core.cluster.messages import EACH_S, LOST_S, Order, Report
from caovand.core.cluster.node import NodeFacts, from_document
from caovand.core.cluster.plan_document import BadDocument
from caovand.core.engine import Place
from caovand.core.facts.checks import CheckResult
from caovand.core.facts.inventory import Inventory
from caovand.core.healing.failure import Failure, Finding
from caovand.core.lifecycle import events
from caovand.core.lifecycle.state import State
from caovand.core.plan import Plan, Unplannable
from caovand.core.problem import Problem, ProblemError
from caovand.core.reporting.report import foreseen
from caovand.daemon.chronicle import Then
from caovand.daemon.cluster import here
from caovand.daemon.cluster.choosing import (
    Choice,
    Quorum,
    choose,
    uncompared,
    unended,
    unfit,
)
from caovand.daemon.cluster.comparison import Comparison
from caovand.daemon.cluster.document import with_checks
from caovand.daemon.cluster.evidence import WAIT_S, Collector
from caovand.daemon.cluster.measuring import Links
from caovand.daemon.cluster.members import Member
from caovand.daemon.cluster.part import (
    IDLE,
    Changed,
    NextPlan,
    Part,
    Slot,
    Told,
    is_stopped,
    linked,
    state_of,
)
from caovand.daemon.cluster.roster import Roster
from caovand.daemon.cluster.team import Team, standing
from caovand.daemon.cluster.trials import Pace, Peer
from caovand.daemon.inspection import Obstacle, check_port, unplannable
from caovand.daemon.shared import now

ENDING_S = 60.0
"""How long a worker may take to end its rank."""
LOOK_S = 10.0
"""How long a start waits for workers that look anew at what is free of their cards."""
LOOKING = frozenset({State.RECYCLING, State.STARTING})
"""States of a worker without a rank that does so: the next one is HOLD, with what it found."""
WAITS: frozenset[Failure] = frozenset({"node-missing", "node-unfit"})
"""What holds a start until something of another node is different."""


class Head(Part):
    """The part of the head called `name`, which the workers join at `address`.

    `executor` starts the ranks, as [cluster] has it.
    """

    role = "head"

    def __init__(
        self, name: str, address: str, quorum: Quorum, pairs: Pairs, slot: Slot,
        executor: str = "mp",
    ) -> None:  # fmt: skip
        self._name, self._address, self._executor = name, address, executor
        self._quorum = quorum
        self._pairs, self._slot = pairs, slot
        self._boot = os.urandom(8).hex()
        self._roster = Roster(name)
        self._facts: NodeFacts | None = None
        self._refused: Problem | None = None  # why the engine here cannot serve over nodes
        self._start, self._generation = "", 0
        self._plan: Plan | None = None
        self._team = Team({})  # of the last start
        self._short = False  # whether the last attempt had too few nodes
        self._no_rdma, self._sums = "", False
        self._each = 0  # ranks of each node, as last planned
        self._told = Told(slot.notice)
        self._deaf: CheckResult | None = None  # why it cannot hear any worker
        self._since = now()
        self._changed, self._gone = Changed(), Changed()
        self._own_ranks = here.Ranks(slot)
        self._latest = ""  # the last start, also once it has ended
        self._evidence = Collector(slot, self._silence)
        host, port = addresses.split(address)
        self._links = Links(host, port + 1, self._changed)
        self._pace: tuple[int, Pace] | None = None  # of the trials of an inspection

    async def begin(self) -> None:
        """Hear the workers and send each its order, until cancelled."""
        link = await linked(self._listen, self._told)
        try:
            while True:
                self._look()
                self._reconsider()
                self._own_ranks.look()
                refusals = dict(self._roster.refusals())
                for name, member in list(self._roster.members.items()):
                    if member.identity in refusals:
                        continue
                    order = self._evidence.ask(name, self._order(name))
                    frame = messages.encode_order(order)
                    member.gone = not await link.send(member.identity, frame)
                for identity, why in refusals.items():
                    await link.send(identity, messages.encode_order(self._refusal(why)))
                for rival in self._roster.rivals.freed(self._roster.members):
                    self._hear(rival.identity, rival.report, rival.facts)
                await self._changed.within(EACH_S)
        finally:
            link.close()

    async def _listen(self) -> HeadLink:
        try:
            link = await self._opened()
        except ProblemError as problem:
            self._deaf = checks.deaf(problem.problem)
            raise
        self._deaf = None
        return link

    async def _opened(self) -> HeadLink:
        address = await asyncio.to_thread(numeric, self._address)
        if addresses.is_loopback(addresses.split(address)[0]):
            fact = f"{self._address} is this machine's own loopback address, {address}"
            remedy = "set [cluster] head to an address that workers reach"
            raise ProblemError("hear any worker", fact, remedy)
        return HeadLink(address, self._pairs, self._on_frame, self._slot.runtime)

    # -- hearing ----------------------------------------------------------------------------

    def _on_frame(self, identity: bytes, frame: bytes) -> None:
        if frame.startswith(evidence.MARK):
            self._take(identity, frame)
            return
        try:
            report = messages.decode_report(frame)
            facts = from_document(report.facts) if report.facts else None
        except (BadDocument, ValueError) as problem:
            self._told.tell(in_words(self._roster.unread.take(identity, frame, problem)))
            return
        self._roster.unread.forget(identity)
        self._hear(identity, report, facts)

    def _take(self, identity: bytes, frame: bytes) -> None:
        """Take the evidence of a worker that is known by its reports."""
        if (name := self._roster.name_of(identity)) is not None:
            try:
                self._evidence.take(name, frame)
            except BadDocument as problem:
                self._told.tell(f"cannot read the evidence of node {name}: {problem}")

    def _hear(self, identity: bytes, report: Report, facts: NodeFacts | None) -> None:
        if self._roster.is_rival(report):
            self._contest(Member(identity, report, now(), now(), facts))
            return
        heard = self._roster.hear(identity, report, facts, self._team.ranks)
        if heard is None:
            return
        name, (member, known) = report.name, heard
        self._links.asking.heard(name, report.outcome)
        if known is None:
            self._slot.notice("cluster", f"node {name} joined")
        if known is None or standing(member) != standing(known):
            self._gone.wake()
            self._changed.wake()
            self._try_again()
        if name in self._team.ranks and self._start:
            if report.boot != self._team.boots[name]:
                self._fail("node-lost", f"node {name}: its daemon was started anew")
            elif report.failed == self._start and report.finding is not None:
                found = report.finding
                self._fail(found.failure, f"node {name}: {found.text}", found)
            elif report.stopped:
                self._fail("node-lost", f"node {name}: its operator stopped it")

    def _contest(self, rival: Member) -> None:
        """Hear a worker whose name another one has, or the head."""
        if self._roster.rivals.hear(rival, self._roster.members.get(rival.report.name)):
            self._slot.notice("cluster", in_words(checks.named_twice(rival.report.name)))
            self._changed.wake()
        elif not rival.refused:
            self._changed.wake()  # so that both answer

    def _try_again(self) -> None:
        """A node came, or its facts changed: what waits for that need not wait for its turn."""
        snapshot = self._slot.snapshot()
        waits = snapshot.finding is not None and snapshot.finding.failure in WAITS
        if snapshot.state is State.HOLD and waits and not snapshot.inspecting:
            self._slot.apply(events.Reconfigured(at=now(), changed=False))

    def _look(self) -> None:
        members = self._roster.members
        boots = {name: one.report.boot for name, one in members.items() if not one.away}
        self._links.asking.keep(boots)
        for name in self._team.ranks if self._start else ():
            if members[name].lost:
                self._fail("node-lost", f"node {name}: no word from it for {LOST_S:.0f} s")

    def _fail(self, failure: Failure, text: str, found: Finding | None = None) -> None:
        """End everything over what happened on another node, once."""
        if not self._start:
            return
        self._start = ""
        phase = self._slot.snapshot().phase or "serving"
        finding = replace(found, text=text, line=0) if found else Finding(failure, text, phase)
        failed = events.Failed(at=now(), generation=self._generation, finding=finding)
        self._slot.apply(failed)

    # -- the start --------------------------------------------------------------------------

    def _order(self, name: str) -> Order:
        rank = self._team.ranks.get(name)
        if not self._start or rank is None or self._plan is None:
            trial = self._links.asking.trial(name)
            return Order(head=self._boot, name=self._name, sent=now(), trial=trial)
        snapshot = self._slot.snapshot()
        return Order(
            head=self._boot,
            name=self._name,
            start=self._start,
            plan=self._plan,
            rank=rank,
            proven=snapshot.state is State.SERVING,
            phase=snapshot.phase,
            progress=snapshot.progress,
            detail=snapshot.detail,
            sent=now(),
        )

    def _refusal(self, why: str) -> Order:
        return Order(head=self._boot, name=self._name, sent=now(), refusal=why)

    async def plan(self, coming: NextPlan, living: bool) -> tuple[Plan, Endpoint]:
        """The plan over all nodes; raises Obstacle while one is missing or differs.

        Workers are chosen first: whether a model fits is a question about the cards of all.
        """
        nodes = self._slot.engine.nodes
        assert nodes is not None
        self._short = False
        host, port = addresses.split(self._address)
        try:
            inventory = await self._inspected(coming, host)
        except Obstacle:
            if not living:
                self._facts = None  # what cannot be inspected cannot serve
            raise
        if not living:
            async with self._links.turn:
                why = await self._choose(port + 1)
            if why:
                self._slot.notice(
                    "cluster", f"starts on {self._team.count} of {self._quorum.nodes} nodes: {why}"
                )
        if self._refused and self._team.count > 1:  # since the living engine was started
            raise Obstacle("bad-arguments", str(self._refused), hold=True)
        link = self._links.network(self._team.boots)
        link = link and replace(link, rdma=not self._no_rdma)
        plan, endpoint = await coming.plan(self._team.nodes, link)
        if self._team.count == 1:
            self._sums = False
            return plan, endpoint
        assert self._facts is not None
        try:
            spread = nodes.spread(
                plan, replace(inventory, others=self._team.nodes), host, port + 1, self._no_rdma,
                self._executor, self._facts.address,
            )  # fmt: skip
        except Unplannable as problem:
            raise unplannable(problem) from problem
        self._sums, self._each = nodes.sums(spread), len(spread.cards or ())
        return spread, endpoint

    async def _inspected(self, coming: NextPlan, host: str) -> Inventory:
        """The machine, whose facts are ours from now on. Raises Obstacle."""
        nodes = self._slot.engine.nodes
        assert nodes is not None
        inventory = await coming.look()
        self._refused = nodes.refusal(self._executor, inventory.engine)
        if self._refused and self._quorum.strict:
            raise Obstacle("bad-arguments", str(self._refused), hold=True)
        try:
            self._facts = await here.facts(self._name, self._slot, inventory, host)
        except Unplannable as problem:
            raise unplannable(problem) from problem
        return inventory

    def outdated(self) -> str:
        """Who of the chosen workers is not as it was then: trials and planning take minutes."""
        return self._team.outdated(self._roster.members)

    async def _choose(self, port: int) -> str:
        """Choose the workers of the next start, and try their links; as `_ready`."""
        pace = self._paced()
        why = self._ready()
        await asyncio.to_thread(check_port, port, "[cluster] head, which is a port below")
        await self._looked_anew()
        tried: set[Hashable] = set()
        while True:
            chosen = frozenset(self._team.boots.items())
            if new := chosen - tried:
                tried |= new
                await self._measure(sorted(name for name, _ in new), pace)
            elif chosen not in tried:  # with each other, once all are reached by the head
                tried.add(chosen)
                await self._measure_between(list(self._team.ranks), pace)
            else:
                break
            why = self._ready()  # a link that fails may leave another worker to choose
        pace.tell("")
        self._quorum.chosen(self._team.count)
        self._no_rdma = self._why_no_rdma(self._team.ranks)
        return why

    async def _looked_anew(self) -> None:
        """Wait for workers whose rank has just ended, and whose facts are those of before it."""
        until = now() + LOOK_S
        while now() < until and any(map(self._looks_anew, self._team.ranks)):
            await self._gone.within(EACH_S)

    def _looks_anew(self, name: str) -> bool:
        member = self._roster.heard.get(name)
        return member is not None and not member.report.running and member.report.state in LOOKING

    def _paced(self) -> Pace:
        """The pace of the trials of this inspection, which may choose several times.

        The first time, that links did not work is forgotten.
        """
        snapshot = self._slot.snapshot()

        def tell(text: str) -> None:
            self._slot.apply(
                events.Progressed(
                    at=now(), generation=snapshot.generation, phase="plan", detail=text,
                    heartbeat=True,
                )
            )  # fmt: skip

        if self._pace is None or self._pace[0] != snapshot.inspection:
            self._links.forget_failures()
            self._pace = snapshot.inspection, Pace(tell)
        return self._pace[1]

    @property
    def _comparison(self) -> Comparison:
        """What workers are compared with now."""
        nodes = self._slot.engine.nodes
        assert nodes is not None
        configured = nodes.no_rdma(dict(self._slot.config().engine.env))
        package = nodes.packages.get(self._executor)
        return Comparison(self._facts, self._links, self._sums, self._each, package, configured)

    def _why_no_rdma(self, names: Collection[str]) -> str:
        """Why the head and these workers do not use InfiniBand or RoCE, "" if they do."""
        return self._comparison.no_rdma(self._roster.members[name] for name in names)

    def _coming(self) -> list[str]:
        """The workers of the start that runs, else of the next, by rank."""
        return list(self._team.ranks if self._start else self._next().workers)

    def _tcp_only(self) -> bool:
        """Whether NCCL goes over TCP in that start, between all nodes."""
        return bool(self._why_no_rdma(self._coming()))

    async def _measure(self, names: Sequence[str], pace: Pace) -> None:
        slow = self._slow({name: self._roster.members[name] for name in names})
        assert self._facts is not None
        own = self._facts.address
        await self._links.measure(own, self._peers(names), slow.__contains__, pace)

    async def _measure_between(self, names: Sequence[str], pace: Pace) -> None:
        between = self._comparison.between(self._roster.members, self._tcp_only())
        await self._links.measure_between(self._peers(names), between.is_slow, pace)

    def _slow(self, members: Mapping[str, Member]) -> set[str]:
        return self._comparison.slow(members, self._tcp_only())

    def _peers(self, names: Sequence[str]) -> list[Peer]:
        """Those of these workers that can be tried."""
        heard = self._roster.heard
        found = [heard[name] for name in names if name in heard]
        return [
            Peer(one.report.name, one.report.boot, one.facts.address) for one in found if one.facts
        ]

    async def measure(self) -> None:
        """Try the links that no start has tried, or that failed or were slow, while no engine
        runs."""
        async with self._links.turn:
            snapshot = self._slot.snapshot()
            idle = snapshot.state in (*IDLE, State.STOPPED) and not snapshot.inspecting
            heard = self._roster.heard
            slow = self._slow(heard)
            untried = [
                name
                for name, one in heard.items()
                if not one.report.running
                and (not self._links.works(name, one.report.boot) or name in slow)
            ]
            if not idle or self._slot.pids() or self._facts is None:
                return
            pace = Pace()
            await self._measure(untried, pace)
            chosen = self._fit().workers
            if among := self._comparison.between(chosen, self._tcp_only()).wants_trial():
                await self._measure_between(list(chosen), pace)
            if untried or among:
                self._try_again()

    def _ready(self) -> str:
        """Choose the workers of the next start; why they are fewer than all. Raises Obstacle."""
        chosen, why, failure = self._next()
        if self._quorum.waits(1 + len(chosen)):
            self._short = True
            raise Obstacle(failure, f"cannot start: {why}", hold=True)
        self._team = Team(chosen)
        return why

    def _next(self, ours: Collection[str] = (), without: Collection[str] = ()) -> Choice:
        """As `_fit`, but none where the engine here cannot serve over nodes."""
        if self._refused:
            return Choice({}, f"{self._refused.fact}; {self._refused.remedy}", "node-unfit")
        return self._fit(ours, without)

    def _fit(self, ours: Collection[str] = (), without: Collection[str] = ()) -> Choice:
        """The workers that a start can take, and why they are fewer than all."""
        unheard = [in_words(one) for _, one in self._unheard()]
        found = self._comparison.findings(self._roster.heard)
        members = {name: one for name, one in self._roster.members.items() if name not in without}
        return choose(members, found, self._quorum.nodes - 1, unheard, ours)

    def _reconsider(self) -> None:
        """Where fewer nodes may serve: begin with those, and take in others that are back."""
        snapshot = self._slot.snapshot()
        if self._quorum.strict or snapshot.inspecting:
            return
        if snapshot.state is State.HOLD:
            # Only where nodes were too few: any other reason is looked at again in its own time.
            if self._short and not self._quorum.waits(1 + len(self._next().workers)):
                self._short = False
                self._try_again()
        elif (
            self._start
            and snapshot.state is State.SERVING
            and self._team.count < self._quorum.nodes
        ):
            # Trials need an engine's port: until one finds that a link works again, it does not.
            new = self._roster.members.keys() - self._team.ranks
            failed = {name for name in new if self._links.has_failed(name, self._team.ranks)}
            chosen = self._next(self._team.ranks, failed).workers
            back = [
                name
                for name in chosen.keys() - self._team.ranks
                if self._quorum.is_back(chosen[name])
            ]
            if back and self._slot.idle():
                text = f"node {', '.join(sorted(back))} is back"
                self._slot.command(events.Restart(at=now(), reason=text, by="head"))

    def _unheard(self) -> list[tuple[str, CheckResult]]:
        """What keeps workers from being heard, each with the node that it is about."""
        deaf = [(self._name, self._deaf)] if self._deaf else []
        return [*deaf, *self._roster.unheard()]

    def _uncompared(self) -> Iterator[tuple[str, CheckResult]]:
        """Who is here and has nothing to compare, or is not to serve."""
        if self._facts is None:
            snapshot = self._slot.snapshot()
            state, stopped = state_of(snapshot), is_stopped(snapshot)
            yield self._name, unfit(self._name, state, stopped=stopped)
        for name, one in self._roster.heard.items():
            if one.facts is None or one.report.stopped:
                yield name, uncompared(one)

    def own(self, plan: Plan) -> Plan:
        """The head's share of the plan: rank 0."""
        if self._team.count == 1:
            return plan
        nodes = self._slot.engine.nodes
        assert nodes is not None
        assert self._facts is not None
        members = (self._roster.members[name].facts for name in self._team.ranks)
        others = tuple(facts.address for facts in members if facts is not None)
        address, interface = self._facts.address, self._facts.interface
        return nodes.own(plan, Place(0, address, interface, others, self._pairs.token))

    def started(self, plan: Plan, generation: int) -> None:
        """The engine is being started here: let the workers start theirs."""
        self._generation, self._plan = generation, plan
        self._start = self._latest = f"{self._boot}-{generation}"
        self._changed.wake()

    def recorded(self, finding: Finding) -> tuple[Mapping[str, int], Then]:
        """Collect what the workers have of the start that failed."""
        self._changed.wake()
        return self._team.ranks, self._evidence.begin(self._latest, self._team.ranks, finding)

    def _silence(self, name: str) -> str:
        """What is known of a worker that sends no evidence."""
        member = self._roster.members.get(name)
        if member is None or member.lost:
            return "nothing is heard of it: see whether its machine and caovan are up"
        return f"it sent none within {WAIT_S:.0f} s"

    async def ended(self, *, left: bool) -> None:
        """Let the workers end their ranks; comes back once they have, or are lost."""
        self._start = ""
        self._changed.wake()
        until = now() + ENDING_S
        while now() < until:
            busy = [name for name in self._team.ranks if self._still_runs(name)]
            if not busy:
                return
            await self._gone.within(EACH_S)
        for name in busy:
            self._slot.notice("noticed", unended(self._roster.members[name]))

    def _still_runs(self, name: str) -> bool:
        member = self._roster.members.get(name)
        return member is not None and not member.lost and bool(member.report.running)

    # -- telling ----------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """What `status` shows: how many nodes there are to be, and which are here."""
        return {
            "role": self.role, "name": self._name,
            "nodes": self._quorum.nodes, "missing": self._missing,
            "serving": self._team.count if self._start else 0,
            "joined": sorted(self._roster.heard),
            "lost": sorted(name for name, one in self._roster.members.items() if one.lost),
            "refused": sorted({one.report.name for one in self._roster.rivals.refused()}),
        }  # fmt: skip

    @property
    def _missing(self) -> int:
        return max(self._quorum.nodes - 1 - len(self._roster.heard), 0)

    def describe(self) -> dict[str, Any]:
        """The document of the op `cluster`."""
        at, ranks = now(), self._own_ranks.known
        host = addresses.split(self._address)[0]
        own = here.entry(
            self._name, "here", at - self._since, self._facts, ranks, host,
            sizes=here.sizes(self._slot),
        )  # fmt: skip
        others = [
            here.entry(
                name,
                "lost" if member.lost else "joined",
                at - (member.heard if member.lost else member.since),
                member.facts,
                member.report.ranks,
                link=self._links.of(name, member.report.boot),
                sizes=member.report.sizes,
            )
            for name, member in sorted(self._roster.members.items())
        ]
        refused = [
            here.entry(one.report.name, "refused", at - one.since, one.facts, one.report.ranks)
            for one in self._roster.rivals.refused()
        ]
        # A finding about the head alone comes with each worker: it is shown once.
        every = [*self._unheard(), *self._uncompared()]
        every += self._comparison.findings(self._roster.heard, self._tcp_only())
        found = {one: name for name, one in reversed(every)}
        document = {
            "role": self.role, "name": self._name, "head": self._address,
            "nodes": [own, *others, *refused], "missing": self._missing,
            "planned": self._planned(), "forecast": foreseen(self._slot.forecast()),
        }  # fmt: skip
        return with_checks(document, [(name, one) for one, name in reversed(found.items())])

    def _planned(self) -> dict[str, Any]:
        """The workers of the start that runs, else of the next, by rank, what joins them, and the
        host memory of the one that has the least."""
        names = self._coming()
        boots = {name: self._roster.members[name].report.boot for name in names}
        # Without the head's own facts it is not known what NCCL would use over it.
        link = self._links.network(boots) if self._facts else None
        facts = (self._roster.members[name].facts for name in names)
        return {
            "nodes": names,
            "ram_mib": min((one.ram_mib for one in facts if one), default=None),
            "link": link and {"bytes_s": link.bytes_s, "round_trip_s": link.round_trip_s},
            "no_rdma": self._why_no_rdma(names) if names and self._facts else "",
        }
