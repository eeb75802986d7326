"""A worker runs its rank of the head's plan and reports on it; it makes no decisions of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from caovand.adapters.network.cluster_link import LINKS_EACH, WorkerLink
from caovand.adapters.network.http import Endpoint
from caovand.adapters.system import wall_clock
from caovand.core.cluster import messages
from caovand.core.cluster.checks import SAME_CAOVAN
from caovand.core.cluster.messages import EACH_S, LOST_S, Order, Report
from caovand.core.cluster.node import NodeFacts
from caovand.core.cluster.node_document import to_document
from caovand.core.document import BadDocument
from caovand.core.engine.record import NodePlace
from caovand.core.healing.failure import Failure, Finding
from caovand.core.healing.ladder import Decision
from caovand.core.lifecycle import events
from caovand.core.lifecycle.living import PLAN_CHANGED
from caovand.core.lifecycle.state import State
from caovand.core.plan import Plan, Unplannable
from caovand.core.reporting.report import forecast_figures
from caovand.daemon.cluster import here
from caovand.daemon.cluster.evidence import Witness
from caovand.daemon.cluster.here import NodeEntry
from caovand.daemon.cluster.part import (
    IDLE,
    ClusterSlot,
    Membership,
    Notices,
    Part,
    PlanInSteps,
    Signal,
    is_stopped,
    link_when_possible,
    state_of,
)
from caovand.daemon.cluster.prober import Prober
from caovand.daemon.records.chronicle import Then
from caovand.daemon.shared import now
from caovand.daemon.start.inspection import StartObstacle

RUNNING_STATES = frozenset({State.STARTING, State.SERVING})
REJECTED = (
    "every connection closes before both sides prove that they hold the same key: cluster.key "
    "differs, another program uses that port, or the head admits no more connections (at most "
    f"{LINKS_EACH} from one address); copy the head's cluster.key again, then: sudo systemctl "
    "restart caovan; or give each worker its own address"
)
HeadProgress = tuple[str, float | None, str]
"""Progress of the head's start: phase, progress and detail."""


class WorkerPart(Part):
    """A worker of the head at `membership.head`."""

    role = "worker"
    answers = False

    def __init__(self, membership: Membership, slot: ClusterSlot) -> None:
        self._membership, self._slot = membership, slot
        self.planned_by = membership.head
        self._boot = os.urandom(8).hex()
        self._facts: NodeFacts | None = None
        self._order, self._heard = Order(head=""), float("-inf")
        self._unread = ("", float("-inf"))  # the last order's error, and when it came
        self._planned_order = self._order  # the order for which the next rank starts
        self._place = NodePlace(0, "", "")  # where the planned rank runs
        self._running = ""  # the start whose engine runs here
        self._generation = 0
        self._failed: tuple[str, Finding | None] = ("", None)
        self._shown: HeadProgress = ("", None, "")
        self._link: WorkerLink | None = None
        self._stated_silence = ""  # the stated reason while the head is silent
        self._notices = Notices(slot.notice)
        self._since = now()
        self._changed = Signal()
        self._ranks = here.Ranks(slot, membership.nodes)
        self._witness = Witness(slot.failures)
        self._prober = Prober(membership.head, self._changed)

    async def begin(self) -> None:
        """Report to the head and follow its orders, until cancelled."""
        link = self._link = await link_when_possible(self._connect, self._notices)
        try:
            while True:
                self._update_wait_reason()
                # Gather evidence before ending a rank: a living one has more.
                self._witness.follow(self._order, self._failed)
                self._follow_order()
                self._follow_probe()
                self._ranks.refresh()
                await link.send(messages.encode_report(self._report()))
                if frame := self._witness.frame(self._order):
                    await link.send(frame)
                await self._changed.wait(EACH_S)
        finally:
            self._prober.follow(None, "")
            link.close()

    async def _connect(self) -> WorkerLink:
        head, pairs = self._membership.head, self._membership.pairs
        return WorkerLink(head, pairs, self._on_frame, self._slot.directories.runtime)

    def _on_frame(self, sender: bytes, frame: bytes) -> None:
        try:
            order = messages.decode_order(frame)
        except BadDocument as problem:
            self._notices.publish(f"cannot parse the head's order: {problem}")
            self._unread = (str(problem), now())
            return
        if self._lost:
            self._since = now()
            self._slot.notice("cluster", f"joined the head at {self._membership.head}")
        before, self._order, self._heard = self._order, order, now()
        if _urgent_parts(order) != _urgent_parts(before):
            self._changed.wake()
        if order.refusal != before.refusal:
            self._retry()

    @property
    def _lost(self) -> bool:
        return now() - self._heard > LOST_S

    @property
    def _silence_cause(self) -> str:
        """The reason for the head's silence, as far as known."""
        if self._link is not None and self._link.rejected:
            return REJECTED
        problem, at = self._unread
        if now() - at <= LOST_S:
            return f"its orders cannot be parsed: {problem}; {SAME_CAOVAN}"
        return "it does not answer"

    @property
    def _start_to_run(self) -> str:
        """The start to run now; "" if there is none."""
        order = self._order
        if self._lost or order.plan is None or order.start == self._failed[0]:
            return ""
        return order.start

    def _follow_order(self) -> None:
        """Follow the order, one step at a time."""
        snapshot, start, order = self._slot.snapshot, self._start_to_run, self._order
        if self._running and start != self._running:
            if snapshot.state in RUNNING_STATES and snapshot.generation == self._generation:
                reason = "the head cancelled this start"
                if self._lost:
                    reason = f"the head has been silent for {LOST_S:.0f} s"
                restart = events.Restart(at=now(), reason=reason, by="head")
                self._slot.apply_operator_event(restart)
            return
        if not self._running:
            if start and snapshot.state in IDLE:
                self._slot.apply_operator_event(events.Start(at=now()))
            return
        if snapshot.state is not State.STARTING or not snapshot.spawned:
            return
        generation = snapshot.generation
        if order.proven:
            if self._slot.run.watching is not None:
                self._slot.run.watching.serves()
        elif (stage := (order.phase, order.progress, order.detail)) != self._shown:
            self._shown = stage
            step = events.Progressed(
                at=now(),
                generation=generation,
                phase=order.phase or snapshot.phase,
                progress=order.progress,
                detail=f"the head: {order.detail or order.phase}",
            )
            self._slot.apply(step)

    def _retry(self) -> None:
        """Inspect again, because the reason for waiting has changed."""
        snapshot = self._slot.snapshot
        if snapshot.state is State.HOLD and not snapshot.inspecting:
            self._slot.apply(events.Reconfigured(at=now(), changed=False))

    def _update_wait_reason(self) -> None:
        """Update why this node waits for a silent head, as more becomes known."""
        if self._stated_silence and self._lost and self._stated_silence != self._silence_cause:
            self._retry()

    def _follow_probe(self) -> None:
        """Run the head's probe, unless an engine is here."""
        free = not self._lost and not self._running and not here.engine_pids(self._slot)
        address = self._facts.address if self._facts else ""
        self._prober.follow(self._order.probe if free and address else None, address)

    async def plan(self, next_plan: PlanInSteps, living: bool) -> tuple[Plan, Endpoint]:
        """The head's plan for this node; raises StartObstacle while there is none."""
        if self._running and not living:
            self._forget_start()  # processes that had outlived KILL are gone now
        config, nodes = self._slot.config, self._membership.nodes
        self._stated_silence = ""
        try:
            inventory = await self._slot.planner.inspect_for(config, living=living)
            facts = self._facts = await here.facts(self._membership, self._slot, inventory)
        except Unplannable as problem:
            self._forget_facts(living)
            raise StartObstacle(problem.failure, str(problem), hold=True) from problem
        except StartObstacle as problem:
            self._forget_facts(living)
            # The head sends no order to a node without facts: only another inspection detects a
            # change.
            problem.hold = True
            raise
        self._changed.wake()
        order = self._planned_order = self._order
        if not self._start_to_run or order.plan is None:
            silent = self._lost
            self._stated_silence = self._silence_cause if silent else ""
            fact = self._stated_silence or order.refusal or "it has not ordered a start"
            text = f"waiting for the head at {self._membership.head}: {fact}"
            failure: Failure = "node-unfit" if order.refusal and not silent else "node-missing"
            raise StartObstacle(failure, text, hold=True)
        try:
            plan = replace(nodes.adapt(order.plan, config, inventory), model=config.model.path)
        except Unplannable as problem:
            raise StartObstacle(problem.failure, str(problem), hold=True) from problem
        self._place = NodePlace(
            order.rank, facts.address, facts.interface, token=self._membership.pairs.token
        )
        self._slot.planner.adopt(plan, inventory, self._slot.mode[0])
        return plan, Endpoint(str(plan.value("host")), int(plan.value("port")), "", False)

    def _forget_facts(self, living: bool) -> None:
        """Drop the facts: a machine that cannot be inspected cannot serve, except for a living
        rank."""
        if not living:
            self._facts = None

    def own(self, plan: Plan) -> Plan:
        """This node's part of the plan."""
        return self._membership.nodes.place(plan, self._place)

    def started(self, plan: Plan, generation: int) -> None:
        """Note that the rank is starting."""
        self._running, self._generation = self._planned_order.start, generation
        self._witness.started(self._running)
        self._shown = ("", None, "")
        self._changed.wake()

    async def ended(self, *, left: bool) -> None:
        """Note that the rank has exited; if the head still needs it, the head restarts all
        ranks.
        """
        if self._running and self._running == self._start_to_run:
            changed = self._slot.snapshot.reason == PLAN_CHANGED
            cause = (
                " because its configuration changed there" if changed else " by an operator there"
            )
            self._failed = (self._running, Finding("node-lost", f"its rank was stopped{cause}"))
        if left:
            self._changed.wake()
        else:
            self._forget_start()

    def _forget_start(self) -> None:
        """Note that no process of the rank is left here: the head may start another one."""
        self._running = ""
        self._changed.wake()

    def refused(self, finding: Finding) -> None:
        """Report to the head why no rank can start here; it orders another start.

        A living rank keeps its plan, as on a standalone node whose reload was refused.
        """
        if self._start_to_run and self._start_to_run != self._running:
            self._failed = (self._start_to_run, finding)
            self._changed.wake()

    def judge(self, finding: Finding) -> Decision:
        """Wait for the head, which is informed of the failure."""
        self._failed = (self._running or self._planned_order.start, finding)
        self._changed.wake()
        return Decision("hold", text="the head decides what happens next")

    def recorded(self, finding: Finding) -> tuple[Mapping[str, int], Then]:
        """Note that the head will ask for this incident's evidence."""
        return {}, self._witness.recorded(self._failed[0])

    def _report(self) -> Report:
        snapshot, at = self._slot.snapshot, now()
        failed, finding = self._failed
        return Report(
            name=self._membership.name,
            boot=self._boot,
            facts=to_document(self._facts) if self._facts else {},
            state=state_of(snapshot),
            running=self._running,
            failed=failed,
            finding=finding,
            stopped=is_stopped(snapshot),
            ranks=self._ranks.known if self._running else (),
            sizes=here.sizes(self._slot) if self._running else {},
            network=here.network(self._slot) if self._running else "",
            clock=wall_clock.now(),
            echo=self._order.sent,
            probe=self._prober.report,
            held_s=max(at - self._heard, 0.0) if self._order.head else 0.0,
        )

    def summary(self) -> dict[str, Any]:
        """The `status` summary: the head, and whether it answers."""
        lost = [self._membership.head] if self._lost else []
        return {
            "role": self.role, "name": self._membership.name, "head": self._membership.head,
            "head_name": self._order.name, "missing": len(lost), "lost": lost,
        }  # fmt: skip

    def describe(self) -> dict[str, Any]:
        """The document of the op `cluster`: this node, and the head as seen from here."""
        age_s = now() - self._since
        name, head = self._membership.name, self._membership.head
        own = here.own_entry(self._slot, name, age_s, self._facts, self._ranks.known)
        state = "lost" if self._lost else "joined"
        host, _ = self._membership.rendezvous
        entry = NodeEntry(self._order.name or "the head", state, age_s, address=host)
        return {
            "role": self.role, "name": name, "head": head, "nodes": [own, entry.document()],
            "missing": 0, "forecast": forecast_figures(self._slot.run.forecast), "checks": [],
        }  # fmt: skip


def _urgent_parts(order: Order) -> tuple[Any, ...]:
    """The parts of an order that take effect at once."""
    return (
        order.head, order.start, order.proven, order.refusal, order.evidence, order.probe
    )  # fmt: skip
