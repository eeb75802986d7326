"""A head's workers: who reports, who can serve, and which of them a start uses."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple

from caovand.adapters.system import wall_clock
from caovand.core.cluster import checks
from caovand.core.cluster.finding import finding, finding_text
from caovand.core.cluster.messages import LOST_S, Report, name_in
from caovand.core.cluster.node import NodeFacts, node_of
from caovand.core.facts.checks import CheckResult
from caovand.core.facts.inventory import Node
from caovand.core.healing.failure import Failure
from caovand.core.lifecycle.state import State
from caovand.daemon.shared import now

MAX_WORKERS = 256  # names remembered


@dataclass
class Member:
    """A worker as of its last report at `heard`; `since` is when it joined, `identity` its
    connection.

    `gone` means that this connection has ended, `refused` that another machine has its name.
    """

    identity: bytes
    report: Report
    heard: float
    since: float
    facts: NodeFacts | None = None
    round_trip_s: float = 0.0
    offset_s: float = 0.0
    gone: bool = False
    refused: bool = False

    @property
    def lost(self) -> bool:
        """Whether it has been silent for too long."""
        return now() - self.heard > LOST_S

    @property
    def away(self) -> bool:
        """Whether another run of its daemon may take its name."""
        return self.gone or self.lost

    def has_answered(self, since: float) -> bool:
        """Whether it has received one of our orders since then: a report may have been in
        transit."""
        return since <= self.report.echo <= now()

    @property
    def standing(self) -> Any:
        """The part of its state that affects a start.

        Excludes free GPU memory, and the order of the cards, which depends on free memory.
        """
        facts = self.facts and replace(
            self.facts, clock=0.0, shm_free_mib=0,
            cards=tuple(replace(card, free_mib=0) for card in sorted(self.facts.cards, key=_kind)),
        )  # fmt: skip
        return facts, self.report.running, self.report.stopped


_kind = attrgetter("kind")


class ReceivedReport(NamedTuple):
    """A worker that has reported, and its state before; None if it has just joined."""

    worker: Member
    before: Member | None


class Workers:
    """Everyone who reports to the head called `own`; `by_name` has its workers, including lost
    ones.

    Reports under the name of another worker, or of the head, are kept apart as rivals. A restarted
    daemon sends such reports too, until its previous connection has ended. They come from two
    machines once both have answered.
    """

    def __init__(self, own: str) -> None:
        self._own = own
        self.deaf: CheckResult | None = None  # why the head cannot receive reports
        self.by_name: dict[str, Member] = {}
        self._rivals: dict[str, Member] = {}  # by boot
        self._unread: dict[bytes, tuple[float, str, CheckResult]] = {}

    @property
    def present(self) -> dict[str, Member]:
        """The workers that are not lost."""
        return {name: one for name, one in self.by_name.items() if not one.lost}

    def name_of(self, identity: bytes) -> str | None:
        """Name of the worker with this connection."""
        found = (name for name, one in self.by_name.items() if one.identity == identity)
        return next(found, None)

    def hear(
        self, identity: bytes, report: Report, facts: NodeFacts | None, needed: Collection[str]
    ) -> ReceivedReport | None:
        """Process a worker's report; None if there is no room for another worker.

        To make room, the worker lost longest is forgotten, unless it is in `needed`.
        """
        name, at = report.name, now()
        before = self.by_name.get(name)
        if before is None and len(self.by_name) >= MAX_WORKERS and not self._make_room(needed):
            return None
        new = before is None or before.lost or before.report.boot != report.boot
        known = None if new else before
        worker = Member(identity, report, at, known.since if known else at, facts)
        if report.echo:
            trip_s = max(at - report.echo - report.held_s, 0.0)
            # The shortest is the network's; longer ones waited for a busy machine.
            shortest_s = known.round_trip_s if known else 0.0
            worker.round_trip_s = min(trip_s, shortest_s or trip_s)
            worker.offset_s = report.clock + worker.round_trip_s / 2 - wall_clock.now()
        self.by_name[name] = worker
        return ReceivedReport(worker, known)

    def _make_room(self, needed: Collection[str]) -> bool:
        lost = {n: one.heard for n, one in self.by_name.items() if one.lost and n not in needed}
        if lost:
            del self.by_name[min(lost, key=lost.__getitem__)]
        return bool(lost)

    # -- two machines with one name ---------------------------------------------------------

    def is_rival(self, report: Report) -> bool:
        """Whether another run of a daemon, or the head, already has the reporter's name."""
        holder = self.by_name.get(report.name)
        taken = holder is not None and holder.report.boot != report.boot and not holder.away
        return taken or report.name == self._own

    def contest(self, rival: Member) -> bool:
        """Take a rival's report; True once two machines are certain."""
        boot, holder = rival.report.boot, self.by_name.get(rival.report.name)
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

    def _present_rivals(self) -> list[Member]:
        self._rivals = {boot: one for boot, one in self._rivals.items() if not one.lost}
        return list(self._rivals.values())

    def refused(self) -> list[Member]:
        """Rivals that cannot take part under their name."""
        return [rival for rival in self._present_rivals() if rival.refused]

    def take_freed(self) -> list[Member]:
        """Remove and return the rivals whose name is free again."""
        names = {self._own, *(name for name, one in self.by_name.items() if not one.away)}
        found = [rival for rival in self._present_rivals() if rival.report.name not in names]
        for rival in found:
            del self._rivals[rival.report.boot]
        return found

    # -- reports that cannot be read --------------------------------------------------------

    def note_unread(self, identity: bytes, frame: bytes, problem: Exception) -> CheckResult:
        """Remember a frame's error until the next frame, or until that worker is lost."""
        name = name_in(frame)
        found = checks.unreadable_report(name, problem)
        if identity in self._unread or len(self._unread) < MAX_WORKERS:
            self._unread[identity] = now(), name, found
        return found

    def note_read(self, identity: bytes) -> None:
        """Note that the last report of this connection was readable."""
        self._unread.pop(identity, None)

    def _still_unread(self) -> dict[bytes, tuple[str, CheckResult]]:
        self._unread = {one: at for one, at in self._unread.items() if now() - at[0] <= LOST_S}
        return {one: (name, found) for one, (_, name, found) in self._unread.items()}

    def refusals(self) -> Iterator[tuple[bytes, str]]:
        """Workers that get no other order, with the reason: "" while a duplicate name is not
        certain."""
        for rival in self._present_rivals():
            text = finding_text(checks.duplicate_names(rival.report.name)) if rival.refused else ""
            yield rival.identity, text
        joined = {worker.identity for worker in self.present.values()}
        for identity, (_, found) in self._still_unread().items():
            if identity not in joined:  # one unreadable frame ends no rank
                yield identity, finding_text(found)

    def unheard(self) -> list[tuple[str, CheckResult]]:
        """The reasons why reports cannot be received, each with its node."""
        names = sorted({rival.report.name for rival in self.refused()})
        twice = [(name, checks.duplicate_names(name)) for name in names]
        deaf = [(self._own, self.deaf)] if self.deaf else []
        return [*deaf, *twice, *self._still_unread().values()]


class Team:
    """The workers of a start as they were when chosen, ordered by rank.

    The first has rank 1, after the head's 0.
    """

    def __init__(self, chosen: Mapping[str, Member]) -> None:
        self._chosen = dict(chosen)
        self.ranks = {name: rank for rank, name in enumerate(self._chosen, 1)}
        self.boots = {name: one.report.boot for name, one in self._chosen.items()}

    @property
    def count(self) -> int:
        """Number of nodes, including the head."""
        return 1 + len(self._chosen)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes in the planner's terms, by rank."""
        known = ((name, one.facts) for name, one in self._chosen.items())
        return tuple(node_of(name, facts.cards, facts.ram_mib) for name, facts in known if facts)

    def outdated(self, workers: Mapping[str, Member]) -> str:
        """Describe the workers that changed after they were chosen; "" if none did."""
        found = ((name, self._change(name, workers.get(name))) for name in self._chosen)
        return "; ".join(f"node {name}: {change}" for name, change in found if change)

    def _change(self, name: str, worker: Member | None) -> str:
        if worker is None or worker.away:
            return "its link has ended"
        if worker.report.boot != self.boots[name]:
            return "its daemon was restarted"
        same = worker.standing == self._chosen[name].standing
        return "" if same else "it is not as it was chosen"


class AvailableWorkers(NamedTuple):
    """Available workers; `why` there are fewer than wanted, "" if there are enough.

    `failure` is the kind: a missing node is waited for, while a present node that cannot take part
    needs someone.
    """

    workers: dict[str, Member]
    why: str = ""
    failure: Failure = "node-missing"


def choose(
    workers: Mapping[str, Member],
    found: Sequence[tuple[str, CheckResult]],
    wanted: int,
    also: Sequence[str] = (),
    ours: Collection[str] = (),
) -> AvailableWorkers:
    """Choose up to `wanted` workers that can take part.

    `found` are findings about them by name, `also` other possible reasons why one is missing. A
    running rank of one of `ours` is no obstacle.
    """
    present = {
        name: worker
        for name, worker in sorted(workers.items())
        if not worker.lost and not worker.report.stopped and worker.facts is not None
    }
    wrong = {name: one for name, one in reversed(found) if one.verdict == "FAIL"}
    busy = [name for name, one in present.items() if one.report.running and name not in ours]
    fit = [name for name in present if name not in wrong and name not in busy]
    chosen = {name: present[name] for name in fit[:wanted]}
    if len(chosen) == wanted:
        return AvailableWorkers(chosen)
    if (lacking := wanted - len(present)) > 0:
        away = [_obstacle(one) for name, one in workers.items() if name not in present]
        why = "; ".join(filter(None, [*also, *away])) or "start caovan there"
        text = f"{lacking} of {wanted + 1} nodes missing: {why}"
        return AvailableWorkers(chosen, text, "node-unfit" if any(also) else "node-missing")
    for name, first in ((name, one) for name, one in wrong.items() if name in present):
        text = f"node {name}: {finding_text(first)}; see `caovanctl cluster check`"
        return AvailableWorkers(chosen, text, "node-unfit")
    return AvailableWorkers(chosen, "; ".join(unended_text(present[name]) for name in busy))


def unended_text(worker: Member) -> str:
    """Describe a worker that still runs its rank of an earlier start."""
    return (
        f"node {worker.report.name} still has its rank of the start before: {worker.report.state}"
    )


def _obstacle(worker: Member) -> str:
    """Why a known worker cannot take part."""
    if worker.lost:
        return f"{worker.report.name} is silent: see whether its machine and caovan are up"
    found = uncompared_text(worker)
    return ": ".join(filter(None, [found.text, found.remedy]))


def uncompared_text(worker: Member) -> CheckResult:
    """The finding about a present worker that cannot take part: it was stopped, or has sent no
    facts."""
    report = worker.report
    return unfit_text(report.name, report.state, stopped=report.stopped, joined="has joined and ")


def unfit_text(name: str, state: str, *, stopped: bool, joined: str = "") -> CheckResult:
    """The finding about a node without comparable facts; `state` is as in a report."""
    if stopped:
        return finding("FAIL", f"{name} was stopped by its operator", "`caovanctl start` there")
    if state in State.__members__:
        text = f"{name} {joined}has yet to inspect its engine, model and cards: {state}"
        return finding("FAIL", text, "check again in a minute")
    return finding("FAIL", f"{name} {joined}cannot serve: {state}")
