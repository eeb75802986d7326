"""A head's workers: who reports, and whose reports cannot be used."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from caovand.adapters.system import wall_clock
from caovand.core.cluster import checks
from caovand.core.cluster.checks import Measurements
from caovand.core.cluster.finding import finding_text
from caovand.core.cluster.link import LinkState
from caovand.core.cluster.messages import LOST_S, Report, name_in
from caovand.core.cluster.node import NodeFacts
from caovand.core.facts.checks import CheckResult
from caovand.daemon.shared import now

MAX_WORKERS = 256  # names remembered


@dataclass
class Worker:
    """A worker as of its last report at `heard`; `since` is when it joined, `identity` its
    connection.

    `link` is the state of its link to the head, None until this run of its daemon has been probed;
    `link_failed`: the last probe failed, even one in an earlier run. `disconnected` means that its
    connection has ended, `refused` that another machine has its name.
    """

    identity: bytes
    report: Report
    heard: float
    since: float
    facts: NodeFacts | None = None
    round_trip_s: float = 0.0
    offset_s: float = 0.0
    link: LinkState | None = None
    link_failed: bool = False
    disconnected: bool = False
    refused: bool = False

    @property
    def name(self) -> str:
        """The name under which it reports."""
        return self.report.name

    @property
    def boot(self) -> str:
        """The run of its daemon."""
        return self.report.boot

    @property
    def address(self) -> str:
        """Where its ranks listen; "" until known."""
        return self.facts.address if self.facts else ""

    @property
    def measured(self) -> Measurements:
        """The measurements between the head and this worker."""
        return Measurements(self.round_trip_s, self.offset_s, self.link)

    @property
    def lost(self) -> bool:
        """Whether it has been silent for too long."""
        return now() - self.heard > LOST_S

    @property
    def absent(self) -> bool:
        """Whether it is gone, as far as known: another run of its daemon may then use its name."""
        return self.disconnected or self.lost

    def has_answered(self, since: float) -> bool:
        """Whether it has received one of our orders since then: a report may have been in
        transit."""
        return since <= self.report.echo <= now()

    @property
    def start_basis(self) -> Any:
        """The part of its state that affects a start.

        Excludes free GPU memory, and the order of the cards, which depends on free memory.
        """
        facts = self.facts and replace(
            self.facts, clock=0.0, shm_free_mib=0,
            cards=tuple(replace(card, free_mib=0) for card in sorted(self.facts.cards, key=_kind)),
        )  # fmt: skip
        return facts, self.report.running, self.report.stopped


_kind = attrgetter("kind")
News = Literal["joined", "changed", "same", "full"]
"""A worker's change with a report: of its `start_basis` if "changed"; "full" if no other worker can
be remembered."""


class _Unread(NamedTuple):
    """A report that could not be read, when it came, and its sender's name."""

    at: float
    name: str
    finding: CheckResult


class Workers:
    """Everyone who reports to the head called `own`; `by_name` has its workers, including lost
    ones.

    Reports under the name of another worker, or of the head, are kept apart as rivals. A restarted
    daemon sends such reports too, until its previous connection has ended. They come from two
    machines once both have answered.
    """

    def __init__(self, own: str) -> None:
        self._own = own
        self.listen_failure: CheckResult | None = None  # why the head cannot receive reports
        self.by_name: dict[str, Worker] = {}
        self._rivals: dict[str, Worker] = {}  # by boot
        self._unread: dict[bytes, _Unread] = {}  # by connection

    @property
    def present(self) -> dict[str, Worker]:
        """The workers that are not lost."""
        return {name: one for name, one in self.by_name.items() if not one.lost}

    def name_of(self, identity: bytes) -> str | None:
        """Name of the worker with this connection."""
        names = (name for name, one in self.by_name.items() if one.identity == identity)
        return next(names, None)

    def hear(
        self, identity: bytes, report: Report, facts: NodeFacts | None, needed: Collection[str]
    ) -> News:
        """Process a worker's report.

        To make room, the worker that has been lost longest is dropped, unless it is in `needed`.
        """
        name, at = report.name, now()
        before = self.by_name.get(name)
        if before is None and len(self.by_name) >= MAX_WORKERS and not self._make_room(needed):
            return "full"
        worker = Worker(identity, report, at, at, facts)
        known: Worker | None = None
        if before is not None:
            worker.link_failed = before.link_failed
            if before.boot == report.boot:
                worker.link = before.link
                known = None if before.lost else before
        if known is not None:
            worker.since = known.since
        if report.echo:
            trip_s = max(at - report.echo - report.held_s, 0.0)
            # The shortest is the network's; longer ones waited for a busy machine.
            shortest_s = known.round_trip_s if known else 0.0
            worker.round_trip_s = min(trip_s, shortest_s or trip_s)
            worker.offset_s = report.clock + worker.round_trip_s / 2 - wall_clock.now()
        self.by_name[name] = worker
        if known is None:
            return "joined"
        return "same" if worker.start_basis == known.start_basis else "changed"

    def keep_link(self, probed: Worker, link: LinkState) -> None:
        """Keep the state of a worker's link, unless its daemon was restarted meanwhile."""
        worker = self.by_name.get(probed.name)
        if worker is not None and worker.boot == probed.boot:
            worker.link, worker.link_failed = link, not link.works

    def forget_failed_links(self) -> None:
        """Treat failed links as unknown until they are probed again."""
        for worker in self.by_name.values():
            if worker.link_failed:
                worker.link = None

    def _make_room(self, needed: Collection[str]) -> bool:
        lost = [one for name, one in self.by_name.items() if one.lost and name not in needed]
        if lost:
            del self.by_name[min(lost, key=attrgetter("heard")).name]
        return bool(lost)

    # -- two machines with one name ---------------------------------------------------------

    def is_rival(self, report: Report) -> bool:
        """Whether another run of a daemon, or the head, already has the reporter's name."""
        holder = self.by_name.get(report.name)
        taken = holder is not None and holder.boot != report.boot and not holder.absent
        return taken or report.name == self._own

    def contest(self, rival: Worker) -> bool:
        """Take a rival's report; True once two machines are certain."""
        boot, holder = rival.boot, self.by_name.get(rival.name)
        known = self._rivals.get(boot)
        if known is None and len(self._rivals) >= MAX_WORKERS:
            return False
        if known is not None:
            rival.since, rival.refused = known.since, known.refused
        self._rivals[boot] = rival
        if rival.refused or not rival.has_answered(rival.since):
            return False
        rival.refused = holder is None or holder.has_answered(rival.since)
        return rival.refused

    def _present_rivals(self) -> list[Worker]:
        self._rivals = {boot: one for boot, one in self._rivals.items() if not one.lost}
        return list(self._rivals.values())

    def refused(self) -> list[Worker]:
        """Rivals that cannot take part under their name."""
        return [rival for rival in self._present_rivals() if rival.refused]

    def take_freed(self) -> list[Worker]:
        """Remove and return the rivals whose name is free again."""
        names = {self._own, *(name for name, one in self.by_name.items() if not one.absent)}
        freed = [rival for rival in self._present_rivals() if rival.name not in names]
        for rival in freed:
            del self._rivals[rival.boot]
        return freed

    # -- reports that cannot be read --------------------------------------------------------

    def note_unread(self, identity: bytes, frame: bytes, problem: Exception) -> CheckResult:
        """Remember a frame's error until the next frame, or until that worker is lost."""
        name = name_in(frame)
        unread = _Unread(now(), name, checks.unreadable_report(name, problem))
        if identity in self._unread or len(self._unread) < MAX_WORKERS:
            self._unread[identity] = unread
        return unread.finding

    def note_read(self, identity: bytes) -> None:
        """Note that the last report of this connection was readable."""
        self._unread.pop(identity, None)

    def _recent_unread(self) -> dict[bytes, _Unread]:
        self._unread = {
            identity: unread
            for identity, unread in self._unread.items()
            if now() - unread.at <= LOST_S
        }
        return self._unread

    def refusals(self) -> Iterator[tuple[bytes, str]]:
        """Workers that get no other order, with the reason: "" while a duplicate name is not
        certain."""
        for rival in self._present_rivals():
            text = finding_text(checks.duplicate_names(rival.name)) if rival.refused else ""
            yield rival.identity, text
        joined = {worker.identity for worker in self.present.values()}
        for identity, unread in self._recent_unread().items():
            if identity not in joined:  # one unreadable frame does not stop a rank
                yield identity, finding_text(unread.finding)

    def unheard(self) -> list[tuple[str, CheckResult]]:
        """The reasons why reports cannot be received, each with its node."""
        names = sorted({rival.name for rival in self.refused()})
        twice = [(name, checks.duplicate_names(name)) for name in names]
        unopened = [(self._own, self.listen_failure)] if self.listen_failure else []
        unread = [(one.name, one.finding) for one in self._recent_unread().values()]
        return [*unopened, *twice, *unread]
