"""Evidence from all nodes for the head's incidents: the head collects what each worker gathers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from caovand.adapters.incidents import Incidents, NoIncident
from caovand.core import limits
from caovand.core.cluster import evidence
from caovand.core.cluster.evidence import NodeEvidence
from caovand.core.cluster.messages import Order
from caovand.core.healing.failure import Finding
from caovand.core.reporting.incident import LIVE_FAILURES, node_file
from caovand.daemon.cluster.part import Signal, SlotFailures
from caovand.daemon.records.chronicle import GatheredEvidence, Then
from caovand.daemon.shared import now

WAIT_S = 15.0
"""Enough for a worker that takes stacks on a busy machine; nothing else waits for it."""
NOT_RUN = "no log: no rank of this start has run since caovand started there"


class Collection:
    """Collects evidence of the failed start `start` from the nodes in `ranks`, for its incident.

    `lost` describes a node that sends no evidence.
    """

    def __init__(
        self, start: str, ranks: Mapping[str, int], store: Incidents, lost: Callable[[str], str]
    ) -> None:
        self.start = start
        self._ranks, self._lacking = ranks, set(ranks)
        self._store, self._lost = store, lost
        self._received: dict[str, NodeEvidence] = {}
        self._incident: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._until = now() + WAIT_S
        self._changed = Signal()

    def lacks(self, name: str) -> bool:
        """Whether this node's evidence is still missing."""
        return name in self._lacking and now() < self._until

    def take(self, name: str, received: NodeEvidence) -> None:
        """Accept a node's evidence if it is still missing."""
        if received.start == self.start and self.lacks(name):
            self._lacking.discard(name)
            self._received[name] = received
            self._changed.wake()

    def recorded(self, gathered: GatheredEvidence) -> None:
        """Note that the incident has been stored, or never will be."""
        self._incident.set_result(gathered.name)

    def close(self) -> None:
        """Stop waiting."""
        self._until = now()
        self._changed.wake()

    async def run(self) -> str:
        """Add arriving evidence to the incident; return a summary, "" without an incident."""
        incident = await self._incident
        if not incident:
            self.close()
            return ""
        stored, problems = list[str](), list[str]()
        while True:
            while self._received:
                name, received = self._received.popitem()
                document = evidence.document(name, self._ranks[name], received)
                if problem := await self._add(incident, name, document):
                    problems.append(problem)
                else:
                    stored.append(name)
            if not self._lacking or now() >= self._until:
                break
            await self._changed.wait(self._until - now())
        for name in sorted(self._lacking):
            reason = self._lost(name)
            document = evidence.missing_evidence(name, self._ranks[name], reason)
            await self._add(incident, name, document)
            problems.append(f"no evidence from {name}: {reason}")
        came = [f"received evidence from {', '.join(sorted(stored))}"] if stored else []
        return f"incident {incident}: {'; '.join([*came, *problems])}"

    async def _add(self, incident: str, name: str, document: Mapping[str, Any]) -> str:
        """Store a node's document; return the reason for a failure, "" on success."""
        file, text = node_file(self._ranks[name]), json.dumps(document, indent=1) + "\n"
        try:
            await asyncio.to_thread(self._store.add, incident, file, text)
        except (NoIncident, OSError, RuntimeError) as problem:
            return (
                f"cannot store the evidence from {name}: {limits.limit_reached(problem) or problem}"
            )
        return ""


class Collector:
    """The head's collector: one collection at a time, each a few seconds long."""

    def __init__(
        self, store: Incidents, notice: Callable[[str, str], None], lost: Callable[[str], str]
    ) -> None:
        self._store, self._notice, self._lost = store, notice, lost
        self._open: Collection | None = None
        self._stacks = False
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, start: str, ranks: Mapping[str, int], finding: Finding) -> Then:
        """Start collecting evidence of a failed start from these nodes, for the current
        incident."""
        if self._open is not None:
            self._open.close()
        collection = self._open = Collection(start, ranks, self._store, self._lost)
        self._stacks = finding.failure in LIVE_FAILURES
        task = asyncio.ensure_future(self._run(collection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return collection.recorded

    async def _run(self, collection: Collection) -> None:
        if text := await collection.run():
            self._notice("cluster", text)

    def ask(self, name: str, order: Order) -> Order:
        """Add to the order the request for evidence that this node still lacks."""
        if self._open is None or not self._open.lacks(name):
            return order
        return replace(order, evidence=self._open.start, stacks=self._stacks)

    def take(self, name: str, frame: bytes) -> None:
        """Accept a node's evidence; raises BadDocument."""
        if self._open is not None and self._open.lacks(name):
            self._open.take(name, evidence.read_frame(frame))


class Witness:
    """A worker's evidence about the start that the head asks about, gathered once."""

    def __init__(self, failures: SlotFailures) -> None:
        self._failures = failures
        self._ran = ""  # the last start with a rank on this node
        self._evidence: NodeEvidence | None = None
        self._gathering = False

    def started(self, start: str) -> None:
        """Note that this node is starting its rank of `start`."""
        self._ran = start

    def recorded(self, start: str) -> Then:
        """Note that this start's incident is being recorded; the head will ask for its evidence."""
        return lambda gathered: self._take(start, True, gathered)

    def follow(self, order: Order, failed: tuple[str, Finding | None]) -> None:
        """Gather what the head asks for, unless present; `failed` is this node's last failure."""
        start = order.evidence
        if not start or self._gathering or (self._evidence and self._evidence.start == start):
            return
        finding = failed[1] if failed[0] == start else None
        self._gathering = True

        def then(gathered: GatheredEvidence) -> None:
            self._gathering = False
            self._take(start, finding is not None, gathered)

        self._failures.gather(finding, order.stacks, then)

    def frame(self, order: Order) -> bytes:
        """The frame to send to the head now; b"" for none."""
        if self._evidence is None or self._evidence.start != order.evidence:
            return b""
        return evidence.encode(self._evidence)

    def _take(self, start: str, failed: bool, gathered: GatheredEvidence) -> None:
        if not gathered.report:
            return  # the head will ask again
        ran = start == self._ran
        lacks = "; ".join(filter(None, [gathered.problem, "" if ran else NOT_RUN]))
        files = gathered.files if ran else {**gathered.files, "log.txt": ""}
        self._evidence = evidence.select_evidence(
            start, gathered.report, files, failed=failed, lacks=lacks
        )
