"""The workers that a head hears, and those that report under a name that another one has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from caovand.core.cluster import checks
from caovand.core.cluster.messages import LOST_S, Report, name_in
from caovand.core.cluster.node import NodeFacts
from caovand.core.facts.checks import CheckResult
from caovand.daemon.shared import now

MAX_MEMBERS = 256  # names that are remembered


@dataclass
class Member:
    """A worker as last heard at `heard`; `since` is when it joined, `identity` its connection.

    `gone` says that this connection has ended, `refused` that another machine has its name.
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
        """Whether nothing was heard of it for too long."""
        return now() - self.heard > LOST_S

    @property
    def away(self) -> bool:
        """Whether its name is free for another run of its daemon."""
        return self.gone or self.lost

    def has_answered(self, since: float) -> bool:
        """Whether it has heard an order of ours since then: a report may have been under way."""
        return since <= self.report.echo <= now()


class Rivals:
    """Those that report under the name of another worker, or under `own`, the head's.

    A daemon that was started anew does so, too, until the connection of the one before has ended.
    Two machines it is once both have answered.
    """

    def __init__(self, own: str) -> None:
        self._own = own
        self._by_boot: dict[str, Member] = {}

    def hear(self, rival: Member, holder: Member | None) -> bool:
        """Take its report; whether it is only now certain that there are two machines.

        `holder` has the name, None where that is the head.
        """
        boot = rival.report.boot
        known = self._by_boot.get(boot)
        if known is None and len(self._by_boot) >= MAX_MEMBERS:
            return False
        if known is not None:
            rival.since, rival.refused = known.since, known.refused
        self._by_boot[boot] = rival
        if rival.refused or not rival.has_answered(rival.since):
            return False
        rival.refused = holder is None or holder.has_answered(rival.since)
        return rival.refused

    def all(self) -> list[Member]:
        """Those that are not lost."""
        self._by_boot = {boot: one for boot, one in self._by_boot.items() if not one.lost}
        return list(self._by_boot.values())

    def refused(self) -> list[Member]:
        """Those that cannot take part under their name."""
        return [rival for rival in self.all() if rival.refused]

    def freed(self, members: Mapping[str, Member]) -> list[Member]:
        """Take out those whose name none of the `members` has any more."""
        names = {self._own, *(name for name, one in members.items() if not one.away)}
        found = [rival for rival in self.all() if rival.report.name not in names]
        for rival in found:
            del self._by_boot[rival.report.boot]
        return found


class Unread:
    """Workers whose last report could not be read, by their connection."""

    def __init__(self) -> None:
        self._found: dict[bytes, tuple[float, str, CheckResult]] = {}

    def take(self, identity: bytes, frame: bytes, problem: Exception) -> CheckResult:
        """Keep what is wrong with a frame until the next one, or until that worker is lost."""
        name = name_in(frame)
        found = checks.unread(name, problem)
        if identity in self._found or len(self._found) < MAX_MEMBERS:
            self._found[identity] = now(), name, found
        return found

    def forget(self, identity: bytes) -> None:
        """Its report can be read."""
        self._found.pop(identity, None)

    def all(self) -> dict[bytes, tuple[str, CheckResult]]:
        """What is wrong with each, with its name."""
        self._found = {one: at for one, at in self._found.items() if now() - at[0] <= LOST_S}
        return {one: (name, found) for one, (_, name, found) in self._found.items()}
