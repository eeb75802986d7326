"""Who reports to a head: its workers, those with a name of another one, and what cannot be read."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from caovand.adapters import wall_clock
from caovand.core.cluster import checks
from caovand.core.cluster.finding import in_words
from caovand.core.cluster.messages import Report
from caovand.core.cluster.node import NodeFacts
from caovand.core.facts.checks import CheckResult
from caovand.daemon.cluster.members import MAX_MEMBERS, Member, Rivals, Unread
from caovand.daemon.shared import now


class Heard(NamedTuple):
    """A worker that has reported, and what was known of it before; None where it joins."""

    member: Member
    known: Member | None


class Roster:
    """All that the head `own` hears; `members` are its workers by name, lost ones too."""

    def __init__(self, own: str) -> None:
        self._own = own
        self.members: dict[str, Member] = {}
        self.rivals = Rivals(own)
        self.unread = Unread()

    @property
    def heard(self) -> dict[str, Member]:
        """The workers that are not lost."""
        return {name: one for name, one in self.members.items() if not one.lost}

    def name_of(self, identity: bytes) -> str | None:
        """Which worker has this connection, None for none of them."""
        found = (name for name, one in self.members.items() if one.identity == identity)
        return next(found, None)

    def is_rival(self, report: Report) -> bool:
        """Whether another run of a daemon, or the head, has the name of the one that reports."""
        holder = self.members.get(report.name)
        taken = holder is not None and holder.report.boot != report.boot and not holder.away
        return taken or report.name == self._own

    def hear(
        self, identity: bytes, report: Report, facts: NodeFacts | None, needed: Collection[str]
    ) -> Heard | None:
        """Take the report of a worker; None where there is no room for another one.

        For a new one the worker that is lost the longest is forgotten, unless it is `needed`.
        """
        name, at = report.name, now()
        before = self.members.get(name)
        if before is None and len(self.members) >= MAX_MEMBERS and not self._make_room(needed):
            return None
        new = before is None or before.lost or before.report.boot != report.boot
        known = None if new else before
        member = Member(identity, report, at, known.since if known else at, facts)
        if report.echo:
            trip_s = max(at - report.echo - report.held_s, 0.0)
            # The shortest is the network's; others waited for a busy machine.
            shortest_s = known.round_trip_s if known else 0.0
            member.round_trip_s = min(trip_s, shortest_s or trip_s)
            member.offset_s = report.clock + member.round_trip_s / 2 - wall_clock.now()
        self.members[name] = member
        return Heard(member, known)

    def _make_room(self, needed: Collection[str]) -> bool:
        lost = {n: one.heard for n, one in self.members.items() if one.lost and n not in needed}
        if lost:
            del self.members[min(lost, key=lost.__getitem__)]
        return bool(lost)

    def refusals(self) -> Iterator[tuple[bytes, str]]:
        """Who gets no other order, and why: "" while it is not certain that two have a name."""
        for rival in self.rivals.all():
            text = in_words(checks.named_twice(rival.report.name)) if rival.refused else ""
            yield rival.identity, text
        joined = {member.identity for member in self.heard.values()}
        for identity, (_, found) in self.unread.all().items():
            if identity not in joined:  # one frame that cannot be read ends no rank
                yield identity, in_words(found)

    def unheard(self) -> list[tuple[str, CheckResult]]:
        """What keeps workers from being heard, each with the node that it is about."""
        names = sorted({rival.report.name for rival in self.rivals.refused()})
        twice = [(name, checks.named_twice(name)) for name in names]
        return [*twice, *self.unread.all().values()]
