"""A slot's part in a cluster. The base class is the standalone part, which does nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from caovand.adapters.child import Child
from caovand.adapters.engine.pump import Ring
from caovand.adapters.files.directories import Directories
from caovand.adapters.incidents import Incidents
from caovand.adapters.network.cluster_key import KeyPairs
from caovand.adapters.network.http import Endpoint
from caovand.core import addresses
from caovand.core.engine.record import MultiNode
from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.facts.inventory import Inventory, Node
from caovand.core.facts.network import Network
from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import Decision
from caovand.core.health.observation import GpuSample
from caovand.core.lifecycle.state import Snapshot, State
from caovand.core.plan import Plan
from caovand.core.problem import ProblemError
from caovand.daemon.engine.figures import SlotFigures
from caovand.daemon.engine.watching import Watching
from caovand.daemon.machine import Machine
from caovand.daemon.records.chronicle import Then
from caovand.daemon.shared import now
from caovand.daemon.start.planning import SlotPlanner

IDLE = frozenset({State.HOLD, State.BACKOFF, State.FAILED})
"""States without an engine, from which one may start."""
RETRY_S = 5.0
MAX_TEXTS, FORGOTTEN_S = 32, 3600.0
LinkT = TypeVar("LinkT")


def state_of(snapshot: Snapshot) -> str:
    """The slot's state as reported to other nodes: the reason while it waits, else its activity."""
    return snapshot.reason if snapshot.state in IDLE else snapshot.state.value


def is_stopped(snapshot: Snapshot) -> bool:
    """Whether the operator has stopped the slot's engine."""
    return snapshot.state in (State.STOPPED, State.STOPPING)


class PlanInSteps(Protocol):
    """A plan in two steps, like planning.NextPlan: in between, a head chooses the `others` and the
    `link` to them."""

    async def inspect(self) -> Inventory: ...

    async def plan(
        self, others: tuple[Node, ...] = (), link: Network | None = None
    ) -> tuple[Plan, Endpoint]: ...


class SlotRun(Protocol):
    """The run of the slot's engine, like run.EngineRun."""

    child: Child | None
    watching: Watching | None
    ring: Ring
    forecast: MemoryEstimate | None

    @property
    def busy(self) -> bool: ...
    @property
    def reported(self) -> Mapping[str, Any]: ...
    def samples(self) -> Sequence[GpuSample]: ...


class SlotFailures(Protocol):
    """The slot's failures, like failure_records.FailureRecords: their incidents in `store`, and
    their evidence for other nodes."""

    store: Incidents

    def gather(self, finding: Finding | None, stacks: bool, then: Then) -> None: ...


class ClusterSlot(Machine, Protocol):
    """A slot as its part in a cluster sees it."""

    figures: SlotFigures
    planner: SlotPlanner

    @property
    def run(self) -> SlotRun: ...
    @property
    def failures(self) -> SlotFailures: ...
    @property
    def directories(self) -> Directories: ...


@dataclass(frozen=True)
class Membership:
    """A node's membership in a cluster: its `name`, the head's HOST:PORT, the keys, and how its
    engine runs on several machines."""

    name: str
    head: str
    pairs: KeyPairs
    nodes: MultiNode

    @property
    def rendezvous(self) -> tuple[str, int]:
        """Where ranks rendezvous: the head's port after the one where workers join."""
        host, port = addresses.split_address(self.head)
        return host, port + 1


class Part:
    """The part of a standalone slot, and the base of the others."""

    role = "off"
    """The part's name in [cluster] role."""
    answers = True
    """Whether the engine here answers requests, by which it is proven and watched."""
    planned_by = ""
    """Address of the head that plans for this node; "" for a node that makes its own plan."""

    async def begin(self) -> None:
        """Do the part's background work until cancelled."""

    async def plan(self, next_plan: PlanInSteps, living: bool) -> tuple[Plan, Endpoint]:
        """The plan of the next engine, or of the `living` one; raises inspection.StartObstacle."""
        await next_plan.inspect()
        return await next_plan.plan()

    def outdated(self) -> str:
        """The reason why the plan just made can no longer start; "" if it can."""
        return ""

    def own(self, plan: Plan) -> Plan:
        """This node's part of a plan."""
        return plan

    def started(self, plan: Plan, generation: int) -> None:
        """Note that this node is starting the engine of this generation."""

    async def ended(self, *, left: bool) -> None:
        """Note that the engine here has exited; with `left`, some processes survived SIGKILL.

        Returns once it has ended on all nodes.
        """

    def refused(self, finding: Finding) -> None:
        """Note why no engine can start here."""

    def judge(self, finding: Finding) -> Decision | None:
        """The part's answer to a failure here; None leaves it to the ladder."""
        return None

    def recorded(self, finding: Finding) -> tuple[Mapping[str, int], Then | None]:
        """Note a new incident; return the other nodes concerned, and the follow-up."""
        return {}, None

    def summary(self) -> dict[str, Any] | None:
        """The cluster's summary in `status`; None without a cluster."""
        return None

    async def check_links(self) -> None:
        """Check whether the nodes reach each other, if no engine runs."""

    def describe(self) -> dict[str, Any]:
        """The document of the op `cluster`."""
        return {"role": self.role}


class Notices:
    """Publishes each distinct text once, for a bounded number of texts.

    A text that has not recurred for a long time is forgotten, which frees its place: it then counts
    as new.
    """

    def __init__(self, notice: Callable[[str, str], None]) -> None:
        self._notice = notice
        self._published: dict[str, float] = {}

    def publish(self, text: str) -> None:
        """Publish this text if it is new."""
        at = now()
        self._published = {
            known: seen for known, seen in self._published.items() if at - seen < FORGOTTEN_S
        }
        if text in self._published:
            self._published[text] = at
        elif len(self._published) < MAX_TEXTS:
            self._published[text] = at
            self._notice("cluster", text)


async def link_when_possible(link: Callable[[], Awaitable[LinkT]], notices: Notices) -> LinkT:
    """Set up the link as soon as possible; publish the ProblemError of each failed attempt."""
    while True:
        try:
            return await link()
        except ProblemError as problem:
            notices.publish(str(problem))
        await asyncio.sleep(RETRY_S)


class Signal:
    """An event that wakes one waiter."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def wake(self) -> None:
        """Wake the waiter."""
        self._event.set()

    async def wait(self, seconds: float) -> None:
        """Wait for a change, for at most `seconds`."""
        # Before Python 3.12, wait_for swallows a cancellation that coincides with the change.
        timer = asyncio.get_running_loop().call_later(seconds, self._event.set)
        try:
            await self._event.wait()
        finally:
            timer.cancel()
            self._event.clear()


class MachineWithPart(Machine, Protocol):
    """A slot's state machine, and its part in a cluster."""

    @property
    def part(self) -> Part:
        """The slot's part in a cluster."""
