"""Check the links between all nodes while no engine runs, and compare the nodes over them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

from caovand.adapters.network.port_check import Connection, connect, kernel_reason, listening
from caovand.core.cluster import checks
from caovand.core.cluster.link import (
    MEETING,
    LinkState,
    PortCheck,
    PortCheckReport,
    handshake_words,
)
from caovand.core.cluster.link_checks import pair_checks, slowest_bytes_s
from caovand.core.cluster.node import NodeFacts
from caovand.core.cluster.rdma import no_rdma
from caovand.core.engine.record import Package
from caovand.core.facts.checks import CheckResult
from caovand.core.facts.network import Network
from caovand.daemon.cluster.part import Changed
from caovand.daemon.cluster.workers import Member
from caovand.daemon.shared import now

REPORT_S = 30.0
"""Time limit for workers to listen, and then to connect to all others."""
MAX_LINKS = 64 * 63
"""Twice the number of links in the largest cluster."""


class Peer(NamedTuple):
    """A worker in one run of its daemon, `boot`, whose ranks will listen at `address`."""

    name: str
    boot: str
    address: str


class Links:
    """The state of all links in the cluster of the head called `head`, whose ranks rendezvous at
    `host` and `port`: to each worker, and between workers.

    `changed` wakes the sender of orders.
    """

    def __init__(self, head: str, host: str, port: int, changed: Changed) -> None:
        self._head, self._host, self._port = head, host, port
        self._changed = changed
        self._known: dict[frozenset[str], tuple[frozenset[str], LinkState]] = {}
        self._stale: set[frozenset[str]] = set()  # failed links that no longer count
        self._probe: PortCheck | None = None
        self._asked: dict[str, str] = {}  # the workers that must report, with their boots
        self._reports: dict[str, PortCheckReport] = {}
        self._heard = Changed()
        self.turn = asyncio.Lock()
        """Serialises checks: there is only one port, and one probe."""

    # -- what is known ----------------------------------------------------------------------

    def of(self, name: str, boot: str) -> LinkState | None:
        """The link to the worker `name`; None if no valid result exists for this run of its
        daemon."""
        return self._of({self._head: "", name: boot})

    def between(self, one: str, other: str, boots: Mapping[str, str]) -> LinkState | None:
        """The link between two workers; the one whose name sorts first takes the head's part."""
        return self._of({one: boots[one], other: boots[other]})

    def _of(self, boots: Mapping[str, str]) -> LinkState | None:
        ends = frozenset(boots)
        known_boots, link = self._known.get(ends, (None, None))
        known = known_boots == frozenset(boots.values()) and ends not in self._stale
        return link if known else None

    def has_failed(self, name: str, others: Collection[str]) -> bool:
        """Whether a worker's link to the head, or to one of `others`, failed its last check.

        Restarting the worker's daemon does not change that.
        """
        known = (self._known.get(frozenset({name, one})) for one in (self._head, *others))
        return any(not one[1].works for one in known if one)

    def forget_failures(self) -> None:
        """Treat failed links as unknown until they are checked again."""
        self._stale = {ends for ends, (_, link) in self._known.items() if not link.works}

    def network(self, facts: Iterable[NodeFacts], boots: Mapping[str, str]) -> Network | None:
        """The network between the head and these workers; `facts` are those of all nodes.

        None if an interface's speed, or the round trip to a worker, is unknown.
        """
        links = [self.of(name, boot) for name, boot in boots.items()]
        trips = [link.connect_s for link in links if link and link.connect_s]
        bytes_s = slowest_bytes_s(facts)
        if not links or len(trips) < len(links) or not bytes_s:
            return None
        return Network(bytes_s, max(trips))

    def _keep(self, ends: Mapping[str, str], link: LinkState) -> None:
        names = frozenset(ends)
        self._known.pop(names, None)
        self._stale.discard(names)
        if len(self._known) >= MAX_LINKS:
            del self._known[next(iter(self._known))]
        self._known[names] = frozenset(ends.values()), link

    # -- checking ---------------------------------------------------------------------------

    async def check(self, own: str, peers: Sequence[Peer]) -> None:
        """Check the links of a head whose rank listens at `own`, and those of these workers.

        All listen first; then all connect to each other at the same time.
        """
        at, token = LinkState(self._host, self._port), secrets.token_hex(32)
        async with contextlib.AsyncExitStack() as stack:
            targets = {MEETING: (self._host, self._port)}
            try:
                meeting = listening(self._host, self._port, *handshake_words(token))
                at = replace(at, meets=(await stack.enter_async_context(meeting))[0])
            except OSError as problem:
                at = replace(at, head_deaf=kernel_reason(problem))
            try:
                listener = listening(own, 0, *handshake_words(token))
                targets[self._head] = await stack.enter_async_context(listener)
            except OSError as problem:
                at = replace(at, own_deaf=kernel_reason(problem))
            if at.works:
                await self._exchange(PortCheck(token), targets, at, peers)
                return
        for peer in peers:
            self._keep({self._head: "", peer.name: peer.boot}, at)

    async def _exchange(
        self,
        probe: PortCheck,
        targets: dict[str, tuple[str, int]],
        at: LinkState,
        peers: Sequence[Peer],
    ) -> None:
        self._asked, self._reports = {one.name: one.boot for one in peers}, {}
        try:
            await self._reported(probe, lambda one: one.port or one.deaf)
            ports = {name: one.port for name, one in self._reports.items() if one.port}
            known = [peer for peer in peers if peer.name in ports]
            targets.update((peer.name, (peer.address, ports[peer.name])) for peer in known)
            probe = replace(probe, targets=targets)
            connecting = [
                connect(*targets[one.name], *handshake_words(probe.token)) for one in known
            ]
            made, _ = await asyncio.gather(
                asyncio.gather(*connecting), self._reported(probe, lambda one: one.failures)
            )
            connections = dict(zip((peer.name for peer in known), made, strict=True))
            for peer in peers:
                link = self._with_head(peer, at, connections.get(peer.name, Connection()))
                self._keep({self._head: "", peer.name: peer.boot}, link)
            for one, other in combinations(sorted(known), 2):
                if found := self._of_two(one, other):
                    self._keep({one.name: one.boot, other.name: other.boot}, found)
        finally:
            self._probe, self._asked = None, {}
            self._changed.wake()

    async def _reported(self, probe: PortCheck, met: Callable[[PortCheckReport], object]) -> None:
        """Wait until all workers that are not lost have reported, within a time limit."""
        self._probe = probe
        self._changed.wake()
        until = now() + REPORT_S
        while now() < until and not all(
            name in self._reports and met(self._reports[name]) for name in self._asked
        ):
            await self._heard.within(until - now())

    def _with_head(self, peer: Peer, at: LinkState, connection: Connection) -> LinkState:
        """The link to a worker, from its report and the head's connection to it."""
        report = self._reports.get(peer.name)
        if report and report.deaf:
            at = replace(at, worker_deaf=report.deaf)
        if not report or not report.failures:
            lost = peer.name not in self._asked
            why = "its daemon ended or was cut off in the meantime" if lost else (
                f"{peer.name} reported nothing for {REPORT_S:.0f} s"
            )  # fmt: skip
            return at if at.worker_deaf else replace(at, unreported=why)
        return replace(
            at,
            to_head=report.failures.get(MEETING, ""), to_own=report.failures.get(self._head, ""),
            to_worker=connection.failure, connect_s=connection.connect_s,
            own=report.own, seen=report.seen, joined=report.joined,
        )  # fmt: skip

    def _of_two(self, one: Peer, other: Peer) -> LinkState | None:
        """The link between two workers; None unless both have reported."""
        to_one = self._reports[other.name].failures.get(one.name)
        to_other = self._reports[one.name].failures.get(other.name)
        if to_one is None or to_other is None:
            return None
        return LinkState(one.address, 0, to_head=to_one, to_worker=to_other)

    def probe(self, name: str) -> PortCheck | None:
        """The probe that this worker must run now."""
        return self._probe if name in self._asked else None

    def hear(self, name: str, reached: PortCheckReport | None) -> None:
        """Take a worker's report."""
        if name in self._asked and self._probe and reached and reached.token == self._probe.token:
            self._reports[name] = reached
            self._heard.wake()

    def keep(self, boots: Mapping[str, str]) -> None:
        """Stop waiting for workers other than these, which come with the run of their daemon."""
        lost = [name for name, boot in self._asked.items() if boots.get(name) != boot]
        for name in lost:
            del self._asked[name]
            self._heard.wake()


@dataclass(frozen=True)
class Comparison:
    """The basis for comparing workers: `own` are the head's facts, None until known.

    `all_reduces`, `ranks` and `package` are as in `checks.compare`; `configured` says why the
    configuration keeps NCCL from InfiniBand, "" if it does not.
    """

    own: NodeFacts | None
    links: Links
    all_reduces: bool
    ranks: int
    package: Package | None
    configured: str

    def no_rdma(self, members: Iterable[Member]) -> str:
        """Why the head and these workers cannot use InfiniBand or RoCE; "" if they can."""
        facts = (self.own, *(member.facts for member in members))
        return self.configured or no_rdma([one for one in facts if one is not None])

    def findings(
        self, members: Mapping[str, Member], tcp_only: bool = False
    ) -> list[tuple[str, CheckResult]]:
        """The findings about these workers; `tcp_only` only affects warnings."""
        found = []
        for name, one in members.items():
            if self.own is not None and one.facts is not None:
                results = checks.compare(
                    self.own,
                    one.facts,
                    one.round_trip_s,
                    one.offset_s,
                    self.links.of(name, one.report.boot),
                    all_reduces=self.all_reduces,
                    ranks=self.ranks,
                    package=self.package,
                    tcp_only=tcp_only,
                )
                found += [(name, result) for result in results]
        return [*found, *self._between_workers(members)]

    def _between_workers(self, members: Mapping[str, Member]) -> list[tuple[str, CheckResult]]:
        """Problems between workers, each blamed on the worker with more failed links, which a start
        should leave out."""
        facts = {name: one.facts for name, one in members.items() if one.facts}
        boots = {name: one.report.boot for name, one in members.items()}
        found = {
            (one, other): tuple(
                pair_checks(facts[one], facts[other], self.links.between(one, other, boots))
            )
            for one, other in combinations(sorted(facts), 2)
        }
        failing = Counter(name for pair, results in found.items() if results for name in pair)
        return [
            (max(pair, key=lambda name: (failing[name], name)), result)
            for pair, results in found.items()
            for result in results
        ]
