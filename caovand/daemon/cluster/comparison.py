"""The head and its workers compared: what differs, what a link lacks, and what joins them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from caovand.core.cluster import checks
from caovand.core.cluster.link_checks import is_slow
from caovand.core.cluster.node import NodeFacts
from caovand.core.cluster.rdma import no_rdma
from caovand.core.engine import Package
from caovand.core.facts.checks import CheckResult
from caovand.daemon.cluster.between import Between
from caovand.daemon.cluster.measuring import Links
from caovand.daemon.cluster.members import Member


@dataclass(frozen=True)
class Comparison:
    """What workers are compared with, and by: `own` are the head's facts, None before it has any.

    `sums`, `ranks` and `package` are as in `checks.compare`; `configured` says why NCCL uses no
    InfiniBand by the configuration, "" where it may.
    """

    own: NodeFacts | None
    links: Links
    sums: bool
    ranks: int
    package: Package | None
    configured: str

    def no_rdma(self, members: Iterable[Member]) -> str:
        """Why the head and these workers do not use InfiniBand or RoCE, "" if they do."""
        facts = (self.own, *(member.facts for member in members))
        return self.configured or no_rdma([one for one in facts if one is not None])

    def between(self, members: Mapping[str, Member], tcp_only: bool) -> Between:
        """The links between these workers; `tcp_only` says that NCCL goes over TCP alone."""
        return Between(members, self.links, self.sums, tcp_only)

    def slow(self, members: Mapping[str, Member], tcp_only: bool) -> set[str]:
        """Those of these workers whose link was slower than it should be, which may have passed."""
        return {name for name, one in members.items() if self._is_slow(name, one, tcp_only)}

    def _is_slow(self, name: str, member: Member, tcp_only: bool) -> bool:
        link = self.links.of(name, member.report.boot)
        if link is None or self.own is None or member.facts is None:
            return False
        return is_slow(self.own, member.facts, link, self.sums, tcp_only)

    def findings(
        self, members: Mapping[str, Member], tcp_only: bool = False
    ) -> list[tuple[str, CheckResult]]:
        """The findings about these workers; `tcp_only` decides over warnings alone."""
        found = []
        for name, one in members.items():
            if self.own is not None and one.facts is not None:
                results = checks.compare(
                    self.own,
                    one.facts,
                    one.round_trip_s,
                    one.offset_s,
                    self.links.of(name, one.report.boot),
                    sums=self.sums,
                    ranks=self.ranks,
                    package=self.package,
                    tcp_only=tcp_only,
                )
                found += [(name, result) for result in results]
        return [*found, *self.between(members, tcp_only).findings()]
