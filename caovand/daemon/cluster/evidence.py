"""Evidence of all nodes for the head's incidents: the head collects, each worker has its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from caovand.adapters.incidents import Incidents, NoIncident
from caovand.core import limits
from caovand.core.cluster import evidence
from caovand.core.cluster.evidence import Evidence
from caovand.core.cluster.messages import Order
from caovand.core.healing.failure import Finding
from caovand.core.reporting.incident import LIVE, node_file
from caovand.daemon.cluster.part import Changed, ClusterSlotProtocol
from caovand.daemon.records.chronicle import GatheredEvidence, Then
from caovand.daemon.shared import now

WAIT_S = 15.0
"""Enough for a worker that takes stacks on a busy machine; nothing else waits for it."""
NOT_RUN = "no rank of this start ran since caovand was started there: no log"


class Collection:
    """What the nodes `ranks` have of the failed start `start`: added to its incident as it comes.

    `lost` tells what is known about a node that sends nothing.
    """

    def __init__(
        self, start: str, ranks: Mapping[str, int], store: Incidents, lost: Callable[[str], str]
    ) -> None:
        self.start = start
        self._ranks, self._lacking = ranks, set(ranks)
        self._store, self._lost = store, lost
        self._came: dict[str, Evidence] = {}
        self._incident: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._until = now() + WAIT_S
        self._changed = Changed()

    def lacks(self, name: str) -> bool:
        """Whether the evidence of this node has still to come."""
        return name in self._lacking and now() < self._until

    def take(self, name: str, found: Evidence) -> None:
        """Take a node's evidence, if it has still to come."""
        if found.start == self.start and self.lacks(name):
            self._lacking.discard(name)
            self._came[name] = found
            self._changed.wake()

    def recorded(self, gathered: GatheredEvidence) -> None:
        """The incident is stored, or never will be."""
        self._incident.set_result(gathered.name)

    def close(self) -> None:
        """Wait no longer."""
        self._until = now()
        self._changed.wake()

    async def run(self) -> str:
        """Add all that comes to the incident; in words what it has then, "" without an incident."""
        incident, came, lacks = await self._incident, list[str](), list[str]()
        if not incident:
            self.close()
            return ""
        while True:
            while self._came:
                name, found = self._came.popitem()
                document = evidence.document(name, self._ranks[name], found)
                problem = await self._add(incident, name, document)
                (lacks if problem else came).append(problem or name)
            if not self._lacking or now() >= self._until:
                break
            await self._changed.within(self._until - now())
        for name in sorted(self._lacking):
            why = self._lost(name)
            await self._add(incident, name, evidence.missing_evidence(name, self._ranks[name], why))
            lacks.append(f"nothing came of {name}: {why}")
        has = [f"the evidence of {', '.join(sorted(came))} came"] if came else []
        return f"incident {incident}: {'; '.join([*has, *lacks])}"

    async def _add(self, incident: str, name: str, document: Mapping[str, Any]) -> str:
        """Store what is known about a node; why not, "" on success."""
        file, text = node_file(self._ranks[name]), json.dumps(document, indent=1) + "\n"
        try:
            await asyncio.to_thread(self._store.add, incident, file, text)
        except (NoIncident, OSError, RuntimeError) as problem:
            return f"cannot keep what {name} has of it: {limits.limit_reached(problem) or problem}"
        return ""


class Collector:
    """The head's: one collection at a time, each a few seconds long."""

    def __init__(self, slot: ClusterSlotProtocol, lost: Callable[[str], str]) -> None:
        self._slot, self._lost = slot, lost
        self._open: Collection | None = None
        self._stacks = False
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, start: str, ranks: Mapping[str, int], finding: Finding) -> Then:
        """Begin to collect what these nodes have of a failed start, for the incident begun."""
        if self._open is not None:
            self._open.close()
        found = self._open = Collection(start, ranks, self._slot.incidents, self._lost)
        self._stacks = finding.failure in LIVE
        task = asyncio.ensure_future(self._run(found))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return found.recorded

    async def _run(self, found: Collection) -> None:
        if text := await found.run():
            self._slot.notice("cluster", text)

    def ask(self, name: str, order: Order) -> Order:
        """The order with the question for what is still lacking of this node."""
        if self._open is None or not self._open.lacks(name):
            return order
        return replace(order, evidence=self._open.start, stacks=self._stacks)

    def take(self, name: str, frame: bytes) -> None:
        """Take a node's evidence; raises BadDocument."""
        if self._open is not None and self._open.lacks(name):
            self._open.take(name, evidence.read_frame(frame))


class Witness:
    """A worker's: what it has of the start that the head asks about, gathered once."""

    def __init__(self, slot: ClusterSlotProtocol) -> None:
        self._slot = slot
        self._ran = ""  # the last start whose rank ran here
        self._found: Evidence | None = None
        self._gathering = False

    def started(self, start: str) -> None:
        """The rank of this start is being started here."""
        self._ran = start

    def recorded(self, start: str) -> Then:
        """An incident of this start is started here: its evidence is what the head will want."""
        return lambda gathered: self._take(start, True, gathered)

    def follow(self, order: Order, failed: tuple[str, Finding | None]) -> None:
        """Gather what the head asks for, unless it is here; `failed` is what failed here last."""
        start = order.evidence
        if not start or self._gathering or (self._found and self._found.start == start):
            return
        finding = failed[1] if failed[0] == start else None
        self._gathering = True

        def then(gathered: GatheredEvidence) -> None:
            self._gathering = False
            self._take(start, finding is not None, gathered)

        self._slot.gather(finding, order.stacks, then)

    def frame(self, order: Order) -> bytes:
        """What is to be sent to the head now, b"" for nothing."""
        wanted = self._found is not None and self._found.start == order.evidence
        return evidence.encode(self._found) if self._found and wanted else b""

    def _take(self, start: str, failed: bool, gathered: GatheredEvidence) -> None:
        if not gathered.report:
            return  # the next question finds it lacking
        ran = start == self._ran
        lacks = "; ".join(filter(None, [gathered.problem, "" if ran else NOT_RUN]))
        files = gathered.files if ran else {**gathered.files, "log.txt": ""}
        self._found = evidence.select_evidence(
            start, gathered.report, files, failed=failed, lacks=lacks
        )
