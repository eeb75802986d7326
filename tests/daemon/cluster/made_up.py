"""A head or a worker over a slot without processes, a link without a network, a clock to advance.

The slot's machine is the real one. Its inspections ask the part, its engines are numbers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from caovand.adapters import node_facts
from caovand.adapters.engine.pump import Ring
from caovand.adapters.incidents import Incidents
from caovand.adapters.network.cluster_key import KeyPairs
from caovand.adapters.network.http import Endpoint
from caovand.core.cluster import messages
from caovand.core.cluster.evidence import MARK
from caovand.core.cluster.link import LinkState
from caovand.core.cluster.messages import Order, Report
from caovand.core.cluster.node import NodeFacts
from caovand.core.cluster.node_document import to_document
from caovand.core.config.parser import parse
from caovand.core.config.schema import Config, WatchSection
from caovand.core.facts.inventory import Gpu, Inventory, Node
from caovand.core.facts.network import Network
from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import Decision
from caovand.core.health.observation import GpuSample
from caovand.core.lifecycle import events
from caovand.core.lifecycle.events import EndChild, Inspect, LifecycleEvent, Spawn
from caovand.core.lifecycle.state import LifecycleRules, Snapshot, State
from caovand.core.lifecycle.transitions import step
from caovand.core.plan import Plan
from caovand.daemon.cluster import head, here, part, selection, team, worker, workers
from caovand.daemon.cluster.head import HeadPart
from caovand.daemon.cluster.links import Links
from caovand.daemon.cluster.part import Part
from caovand.daemon.cluster.team import Quorum
from caovand.daemon.cluster.worker import WorkerPart
from caovand.daemon.cluster.workers import Worker
from caovand.daemon.records.chronicle import Then
from caovand.daemon.start.inspection import StartObstacle
from caovand.daemon.start.inspector import MAX_REPLANS
from caovand.engines.vllm.engine import ENGINE
from tests.core.machines import inventory, plan
from tests.core.nodes import HEAD, T4
from tests.patience import soon

ADDRESS = "10.0.0.1:7070"
PAIRS = KeyPairs(b"", b"", b"", b"")
EACH_S = 0.01
WAIT_S = 60.0  # of a cluster that may serve on fewer nodes


class Clock:
    """The clock of the daemon, that a test advances."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


class Link:
    """The end of a link that sends nowhere: `sent` has the frames, `on_frame` takes one.

    `evidence` is the last frame with evidence. To identities that are `ended` nothing can be sent.
    `rejected` is what a worker's end says of its last connection.
    """

    def __init__(
        self, address: str, pairs: KeyPairs, on_frame: Callable[[bytes, bytes], None], *_: Path
    ) -> None:
        self.on_frame = on_frame
        self.sent: dict[bytes, bytes] = {}
        self.evidence = b""
        self.rejected = False
        self.ended: set[bytes] = set()

    async def send(self, *words: bytes) -> bool:
        identity, frame = words if len(words) == 2 else (b"", words[0])
        if identity in self.ended:
            return False
        if frame.startswith(MARK):
            self.evidence = frame
        else:
            self.sent[identity] = frame
        return True

    def close(self) -> None:
        """Nothing is open."""


GOOD = LinkState("10.0.0.1", 7071, connect_s=1e-4)
CLOSED = replace(GOOD, failures={"reach-worker": "no answer"})


class Checked(Links):
    """Links that work without a probe, but for those of workers that are `broken`."""

    broken: frozenset[str] = frozenset()

    async def probe_workers(self, own: str, workers: Collection[Worker]) -> None:
        for one in workers:
            self._workers.keep_link(one, CLOSED if one.name in self.broken else GOOD)


class Coming:
    """A plan that is still to be made, of one machine: for others the slot notes them."""

    def __init__(self, slot: Slot, again: Plan | None) -> None:
        self._slot, self._again = slot, again

    async def inspect(self) -> Inventory:
        return await self._slot.inspect()

    async def plan(
        self, others: tuple[Node, ...] = (), link: Network | None = None
    ) -> tuple[Plan, Endpoint]:
        self._slot.planned_for.append(tuple(node.name for node in others))
        self._slot.planned_over.append(link)
        if self._slot.meanwhile:
            self._slot.meanwhile.pop(0)()
        return self._again or plan(inventory()), Endpoint("127.0.0.1", 1)


def member(name: str) -> part.Membership:
    assert ENGINE.nodes is not None
    return part.Membership(name, ADDRESS, PAIRS, ENGINE.nodes)


def configured(role: str, **more: Any) -> Config:
    """The configuration of a node, with these further sections."""
    cluster = {"role": role, "head": ADDRESS}
    return parse({"model": {"path": "/srv/m"}, "cluster": cluster, **more})


class Slot:
    """A slot of `config` that does what its machine asks for, at once and without a process.

    `obstacles` are what its inspections meet, `left` names what outlives the end of an engine: then
    no inspection gets further. `planned_for` are the other nodes of each planning,
    `planned_over` the links to them; `meanwhile` is what happens during the next ones.
    """

    def __init__(self, clock: Clock, config: Config) -> None:
        self.snapshot = Snapshot()
        self.notices: list[str] = []
        self.applied: list[LifecycleEvent] = []
        self.obstacles: list[StartObstacle] = []
        self.plans: list[Plan] = []
        self.planned_for: list[tuple[str, ...]] = []
        self.planned_over: list[Network | None] = []
        self.meanwhile: list[Callable[[], None]] = []
        self.left = ""
        self.samples: list[GpuSample] = []
        self.run = SimpleNamespace(
            child=None, watching=SimpleNamespace(serves=self.serves), ring=Ring(10), busy=False,
            forecast=None, reported={}, samples=lambda: self.samples,
        )  # fmt: skip
        self.figures = SimpleNamespace(idle=True)
        self.ends = asyncio.Event()
        self.ends.set()
        self.part = Part()
        self.served = 0
        self.engine, self.mode, self.apply_operator_event = ENGINE, ("auto", ""), self.apply
        self.directories = SimpleNamespace(cache=Path(), runtime=Path())
        self.planner = SimpleNamespace(inspect_for=self.inspect, adopt=lambda *_: None)
        store = Incidents(Path("/nowhere"))
        self.failures = SimpleNamespace(store=store, gather=self._gather)
        self.gathers: list[tuple[Finding | None, bool, Then, State]] = []
        self._clock, self.config = clock, config
        self._working: set[asyncio.Task[None]] = set()

    def notice(self, kind: str, text: str) -> None:
        self.notices.append(text)

    def _gather(self, finding: Finding | None, stacks: bool, then: Then) -> None:
        self.gathers.append((finding, stacks, then, self.snapshot.state))

    async def inspect(self, *_: Any, **__: Any) -> Inventory:
        if self.obstacles:
            raise self.obstacles[0]
        return inventory()

    def apply(self, event: LifecycleEvent) -> None:
        def judge(plan: Plan, finding: Finding, repeats: int) -> Decision:
            return self.part.judge(finding) or Decision("again")

        self.applied.append(event)
        rules = LifecycleRules(WatchSection(recheck_s=3600.0), judge=judge)
        self.snapshot, actions = step(self.snapshot, event, rules)
        for action in actions:
            if isinstance(action, Inspect):
                self._begin(self._inspect(action))
            elif isinstance(action, Spawn):
                self.plans.append(self.part.own(action.plan))
                self.part.started(action.plan, action.generation)
            elif isinstance(action, EndChild):
                self._begin(self._end(action))

    def _begin(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _inspect(self, action: Inspect) -> None:
        now = {"at": self._clock(), "inspection": action.number}
        try:
            if self.left:
                raise StartObstacle("vram-busy", f"{self.left} cannot be killed", hold=True)
            living = self.snapshot.spawned
            for _ in range(MAX_REPLANS):
                found, _ = await self.part.plan(Coming(self, action.plan), living)
                if living or not (outdated := self.part.outdated()):
                    break
            else:
                raise StartObstacle("node-missing", outdated, hold=True)
        except StartObstacle as problem:
            self.part.refused(problem.finding)
            self.apply(events.StartRefused(**now, finding=problem.finding, hold=problem.hold))
        else:
            self.apply(events.Planned(**now, plan=found))

    async def _end(self, action: EndChild) -> None:
        await self.ends.wait()
        await self.part.ended(left=bool(self.left))
        now = {"at": self._clock(), "generation": action.generation}
        if self.left:
            finding = Finding("unknown", f"{self.left} outlived KILL", "ending")
            self.apply(events.Unkillable(**now, finding=finding))
        else:
            self.apply(events.Gone(**now))

    # -- what a test does -------------------------------------------------------------------

    def start(self) -> None:
        self.apply(events.Start(at=self._clock()))

    def restart(self) -> None:
        self.apply(events.Restart(at=self._clock()))

    def reload(self, **more: Any) -> None:
        """Read a configuration with these further sections."""
        self.config = configured(self.config.cluster.role, **more)
        self.apply(events.Reconfigured(at=self._clock()))

    def stop(self) -> None:
        self.apply(events.Stop(at=self._clock()))

    def serves(self) -> None:
        self.served += 1
        self.apply(events.Proven(at=self._clock(), generation=self.snapshot.generation))

    def fails(self, finding: Finding) -> None:
        self.apply(
            events.Failed(at=self._clock(), generation=self.snapshot.generation, finding=finding)
        )

    def looks_again(self) -> None:
        """Its wait in HOLD is over."""
        self.apply(events.TimePassed(at=self.snapshot.deadline or 0.0))

    async def until(self, state: State, spawned: bool | None = None) -> Snapshot:
        """Wait for a state; back-off is over at once."""

        def reached() -> bool:
            if self.snapshot.state is State.BACKOFF and state is not State.BACKOFF:
                self.apply(events.TimePassed(at=self.snapshot.deadline or 0.0))
            found = self.snapshot
            return found.state is state and spawned in (None, found.spawned)

        await soon(reached)
        return self.snapshot


class World:
    """Makes heads and workers, and the link of the latest."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        self.links: list[Link] = []
        for module in (head, worker, workers, here, selection, team):
            patch.setattr(module, "now", self.clock)
        for module in (head, worker, selection):
            patch.setattr(module, "EACH_S", EACH_S)

        def linked(*words: Any) -> Link:
            self.links.append(Link(*words))
            return self.links[-1]

        def facts(name: str, *_: Any, cards: tuple[Gpu, ...], **__: Any) -> NodeFacts:
            return replace(HEAD, name=name, cards=(T4,) * len(cards))

        patch.setattr(head, "Links", Checked)
        patch.setattr(head, "HeadLink", linked)
        patch.setattr(worker, "WorkerLink", linked)
        patch.setattr(selection, "check_port", lambda *_: None)
        patch.setattr(node_facts, "read", facts)

    def play(self, make: Callable[[], Awaitable[Any]]) -> None:
        """Run a story."""
        asyncio.run(make())  # type: ignore[arg-type]

    def _slot(self, role: str, **more: Any) -> Slot:
        return Slot(self.clock, configured(role, **more))

    async def _begun(self, slot: Slot, one: Part) -> Link:
        slot.part = one
        slot._begin(one.begin())
        await soon(lambda: self.links)
        return self.links[-1]

    async def head(self, nodes: int = 2, least: int | None = None, executor: str = "mp") -> AtHead:
        slot = self._slot("head")
        quorum = Quorum(nodes, least or nodes, WAIT_S)
        one = HeadPart(member("n1"), quorum, cast(part.ClusterSlot, slot), executor)
        return AtHead(self.clock, slot, one, await self._begun(slot, one))

    async def worker(self, **more: Any) -> AtWorker:
        slot = self._slot("worker", **more)
        one = WorkerPart(member("n2"), cast(part.ClusterSlot, slot))
        return AtWorker(self.clock, slot, one, await self._begun(slot, one))


class AtHead:
    """A head, and the workers that a test plays."""

    def __init__(self, clock: Clock, slot: Slot, part: HeadPart, link: Link) -> None:
        self.clock, self.slot, self.part, self.link = clock, slot, part, link

    def hear(self, name: str = "n2", **changes: Any) -> None:
        """A report of a worker, over the connection that is called like its boot.

        `facts` are those that differ from the head's, None for a worker that knows none yet.
        """
        other = changes.pop("facts", {})
        facts = {} if other is None else to_document(replace(HEAD, name=name, **other))
        report = Report(**{"name": name, "boot": name, "facts": facts, **changes})
        self.link.on_frame(report.boot.encode(), messages.encode_report(report))

    def order(self, boot: str = "n2") -> Order:
        """The last order on a connection."""
        return messages.decode_order(self.link.sent[boot.encode()])

    async def ordered(self, boot: str = "n2", *, since: float | None = None) -> Order:
        """The next order on a connection."""
        since = self.clock() if since is None else since
        identity = boot.encode()
        await soon(lambda: identity in self.link.sent and self.order(boot).sent >= since)
        return self.order(boot)

    async def answers(self, boot: str, name: str = "n2") -> None:
        """A worker hears an order and reports."""
        order = await self.ordered(boot)
        self.hear(name, boot=boot, echo=order.sent)

    async def started(self, *names: str) -> str:
        """Let these workers join and the head start; what that start is called."""
        for name in names:
            self.hear(name)
        self.slot.start()
        await self.slot.until(State.STARTING, spawned=True)
        await soon(lambda: self.link.sent and self.order(names[0]).start)
        return self.order(names[0]).start


class AtWorker:
    """A worker, and the head that a test plays."""

    def __init__(self, clock: Clock, slot: Slot, part: WorkerPart, link: Link) -> None:
        self.clock, self.slot, self.part, self.link = clock, slot, part, link

    def hear(self, **changes: Any) -> None:
        """An order."""
        order = Order(**{"head": "h", "sent": self.clock(), **changes})
        self.link.on_frame(b"", messages.encode_order(order))

    def report(self) -> Report:
        """The last report."""
        return messages.decode_report(self.link.sent[b""])

    async def reports(self, met: Callable[[Report], object]) -> Report:
        """Wait for a report of this kind."""
        await soon(lambda: self.link.sent and met(self.report()))
        return self.report()
