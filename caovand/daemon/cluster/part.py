"""What a slot does for a cluster, by its role; by itself it does nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from caovand.adapters.incidents import Incidents
from caovand.adapters.network.http import Endpoint
from caovand.core.config.schema import Config
from caovand.core.engine.record import Engine
from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.facts.inventory import Inventory, Node
from caovand.core.facts.network import Network
from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import Decision
from caovand.core.health.observation import GpuSample
from caovand.core.lifecycle.events import Event
from caovand.core.lifecycle.state import Snapshot, State
from caovand.core.plan import Plan
from caovand.core.problem import ProblemError
from caovand.daemon.records.chronicle import Then
from caovand.daemon.shared import now

IDLE = frozenset({State.HOLD, State.BACKOFF, State.FAILED})
"""States without an engine that one may follow."""
RETRY_S = 5.0
MAX_TEXTS, FORGOTTEN_S = 32, 3600.0
Link = TypeVar("Link")


def state_of(snapshot: Snapshot) -> str:
    """How a slot is, as nodes report it: the reason while it waits, else what it does."""
    return snapshot.reason if snapshot.state in IDLE else snapshot.state.value


def is_stopped(snapshot: Snapshot) -> bool:
    """Whether the operator of a slot wants no engine."""
    return snapshot.state in (State.STOPPED, State.STOPPING)


class NextPlan(Protocol):
    """A plan that is still to be made, as planning.NextPlan is: between its two steps a head
    chooses the `others`, which `link` joins."""

    async def look(self) -> Inventory: ...

    async def plan(
        self, others: tuple[Node, ...] = (), link: Network | None = None
    ) -> tuple[Plan, Endpoint]: ...


class SlotMachine(Protocol):
    """The state machine of a part's slot."""

    def config(self) -> Config: ...
    def snapshot(self) -> Snapshot: ...
    def apply(self, event: Event) -> None: ...
    def command(self, event: Event) -> None: ...
    def notice(self, kind: str, text: str) -> None: ...


class SlotEngine(Protocol):
    """The engine of a part's slot, and the way to its plan.

    `look` inspects engine, model and machine, and raises inspection.Obstacle. `adopt` makes a plan
    from elsewhere the slot's own. `lines` are the last of the engine's log; `idle` is whether it
    had no request when it was polled last. `cache` is the daemon's folder for what it finds out,
    `runtime` the one for its sockets.
    """

    engine: Engine
    cache: Path
    runtime: Path

    async def look(self) -> Inventory: ...
    def adopt(self, plan: Plan, inventory: Inventory) -> tuple[Plan, Endpoint]: ...
    def serves(self) -> None: ...
    def pids(self) -> Sequence[int]: ...
    def lines(self) -> Sequence[str]: ...
    def idle(self) -> bool: ...
    def samples(self) -> Sequence[GpuSample]: ...
    def forecast(self) -> MemoryEstimate | None: ...
    def reported(self) -> Mapping[str, Any]: ...


class SlotEvidence(Protocol):
    """What is kept of failures.

    `gather` gathers the evidence of a failure, with the stacks of the engine's processes if
    `stacks`; without a finding, what a failure on another node left here.
    """

    incidents: Incidents

    def gather(self, finding: Finding | None, stacks: bool, then: Then) -> None: ...


class ClusterSlotProtocol(SlotMachine, SlotEngine, SlotEvidence, Protocol):
    """What a part needs of its slot."""


class Part:
    """The part of a slot that serves alone, and what the others have in common."""

    role = "off"
    answers = True
    """Whether the engine here answers requests, and is proven and watched by them."""
    planned_by = ""
    """Where the head is that makes this node's plan; "" for a node that makes its own."""

    async def begin(self) -> None:
        """Begin to work; ends when it is cancelled."""

    async def plan(self, coming: NextPlan, living: bool) -> tuple[Plan, Endpoint]:
        """The plan of the next engine, or of the `living` one; raises inspection.Obstacle."""
        await coming.look()
        return await coming.plan()

    def outdated(self) -> str:
        """Why the plan just made cannot start any more, "" if it can."""
        return ""

    def own(self, plan: Plan) -> Plan:
        """This node's share of a plan."""
        return plan

    def started(self, plan: Plan, generation: int) -> None:
        """The engine of this generation is being started here."""

    async def ended(self, *, left: bool) -> None:
        """The engine here is ended, except what is `left` of it: processes that outlived KILL.

        Comes back once it is ended everywhere.
        """

    def refused(self, finding: Finding) -> None:
        """No engine can start here, for this reason."""

    def judge(self, finding: Finding) -> Decision | None:
        """The answer to a failure here, None if that is the ladder's."""
        return None

    def recorded(self, finding: Finding) -> tuple[Mapping[str, int], Then | None]:
        """Note a new incident; return the other nodes that share it, and what follows."""
        return {}, None

    def summary(self) -> dict[str, Any] | None:
        """What `status` shows of the cluster, None if there is none."""
        return None

    async def check_links(self) -> None:
        """Check whether the nodes reach each other, if no engine runs."""

    def describe(self) -> dict[str, Any]:
        """The document of the op `cluster`."""
        return {"role": self.role}


class Notices:
    """Publishes each distinct text once, and a bounded number of them.

    A text that has not come for a long time is forgotten: it is new again, and frees its place.
    """

    def __init__(self, notice: Callable[[str, str], None]) -> None:
        self._notice = notice
        self._came: dict[str, float] = {}

    def publish(self, text: str) -> None:
        """Publish this text if it is new."""
        at = now()
        self._came = {one: came for one, came in self._came.items() if at - came < FORGOTTEN_S}
        if text in self._came:
            self._came[text] = at
        elif len(self._came) < MAX_TEXTS:
            self._came[text] = at
            self._notice("cluster", text)


async def link_when_possible(link: Callable[[], Awaitable[Link]], notices: Notices) -> Link:
    """Make the link, as soon as that is possible; publish the ProblemError of an attempt."""
    while True:
        try:
            return await link()
        except ProblemError as problem:
            notices.publish(str(problem))
        await asyncio.sleep(RETRY_S)


class Changed:
    """Wakes one waiter when something has changed."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def wake(self) -> None:
        """Something has changed."""
        self._event.set()

    async def within(self, seconds: float) -> None:
        """Wait for a change, for at most `seconds`."""
        # Before Python 3.12 wait_for forgets that it was cancelled if a change came as well.
        timer = asyncio.get_running_loop().call_later(seconds, self._event.set)
        try:
            await self._event.wait()
        finally:
            timer.cancel()
            self._event.clear()
