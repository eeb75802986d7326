"""The links between all nodes, tried while no engine runs: the head's, and those of workers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

from caovand.adapters import link_trial
from caovand.adapters.link_trial import Door, Failed
from caovand.core.cluster.link import Link, Outcome, Trial, rounds, words
from caovand.core.facts.inventory import Network
from caovand.daemon.cluster.asking import REPORT_S, Asking, Unreported
from caovand.daemon.cluster.part import Changed
from caovand.daemon.shared import now

FRESH_S = 3600.0
"""Figures that are older are measured anew, and no longer count."""
MOST_LINKS = 256
MOST_PAIRS = 63 * 62 // 2
"""Those of the most workers that a cluster can have."""


class Peer(NamedTuple):
    """A worker in one run of its daemon, `boot`, whose ranks will listen at `address`."""

    name: str
    boot: str
    address: str


@dataclass
class Known:
    """A link to a run of a worker's daemon, or between two: `boots`.

    Its oldest figure is of `measured`. One that is `stale` is to be tried anew before it counts.
    """

    boots: Hashable
    link: Link
    measured: float
    stale: bool = False


class Memory:
    """Links by the names of those that they join, at most so many."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[Hashable, Known] = {}

    def of(self, names: Hashable, boots: Hashable) -> Link | None:
        """What is known of a link in these runs of the daemons, None for nothing that counts."""
        known = self._known.get(names)
        return known.link if known and known.boots == boots and not known.stale else None

    def has_failed(self, names: Hashable) -> bool:
        """Whether the last trial of a link failed, in whatever runs of the daemons."""
        known = self._known.get(names)
        return known is not None and not known.link.works

    def forget_failures(self) -> None:
        """Forget that links did not work, and keep their figures."""
        for known in self._known.values():
            known.stale = known.stale or not known.link.works

    def fresh(self, names: Hashable, boots: Hashable) -> Known | None:
        """The same with what is stale, and without figures that are old."""
        known = self._known.get(names)
        young = known is not None and now() - known.measured < FRESH_S
        return known if known and young and known.boots == boots else None

    def keep(self, names: Hashable, boots: Hashable, link: Link, before: Known | None) -> None:
        """Keep what a trial showed, `before` which that was known."""
        self._known.pop(names, None)
        if len(self._known) >= self._most:
            del self._known[next(iter(self._known))]
        if before is None:
            self._known[names] = Known(boots, link, now())
        else:
            self._known[names] = Known(boots, link.after(before.link), before.measured)


def _transfers(before: Known | None, again: bool) -> bool:
    """Whether data is to be sent: the first time, `again`, and where the figures are old."""
    return again or before is None or not (before.link.up_bytes_s and before.link.down_bytes_s)


class Links:
    """What the head knows of the links to its workers, whose ranks will meet at `host` and `port`,
    and of those between them.

    `changed` wakes what sends the orders.
    """

    def __init__(self, host: str, port: int, changed: Changed) -> None:
        self._host, self._port = host, port
        self._known, self._pairs = Memory(MOST_LINKS), Memory(MOST_PAIRS)
        self.asking = Asking(changed)
        self.turn = asyncio.Lock()
        """Whoever measures holds it: the port is one, and so is a worker's trial."""

    def of(self, name: str, boot: str) -> Link | None:
        """The link to the worker `name`, None if none is known of this run of its daemon."""
        return self._known.of(name, boot)

    def between(self, one: str, other: str, boots: Mapping[str, str]) -> Link | None:
        """The link between two workers, as if the first of their names were the head's."""
        names = one, other = min(one, other), max(one, other)
        return self._pairs.of(names, (boots[one], boots[other]))

    def works(self, name: str, boot: str) -> bool:
        """Whether the link to a worker is known to work."""
        link = self.of(name, boot)
        return link is not None and link.works

    def has_failed(self, name: str, others: Collection[str]) -> bool:
        """Whether the last trial of a worker's link to the head, or to one of `others`, failed.

        A daemon that is started anew has mended none of them.
        """
        pairs = ((min(name, one), max(name, one)) for one in others)
        return self._known.has_failed(name) or any(map(self._pairs.has_failed, pairs))

    def network(self, boots: Mapping[str, str]) -> Network | None:
        """The slowest of the links of these workers, each with its boot; None if one is unknown."""
        links = [self.of(name, boot) for name, boot in boots.items()]
        links += [self.between(*pair, boots) for pair in combinations(boots, 2)]
        ways = [way for one in links if one for way in (one.up_bytes_s, one.down_bytes_s) if way]
        trips = [one.connect_s for one in links if one and one.connect_s]
        if not links or len(ways) < 2 * len(links) or len(trips) < len(links):
            return None
        return Network(min(ways), max(trips))

    def forget_failures(self) -> None:
        """Forget that links did not work, and keep their figures."""
        self._known.forget_failures()
        self._pairs.forget_failures()

    async def measure(self, peer: Peer, *, again: bool = False) -> None:
        """Try the link to a worker; in turn. That both can connect is found out each time."""
        before = self._known.fresh(peer.name, peer.boot)
        link = await self._try(peer, _transfers(before, again))
        self._known.keep(peer.name, peer.boot, link, before)

    async def measure_between(
        self, peers: Sequence[Peer], again: Callable[[str, str], bool]
    ) -> None:
        """Try the links between these workers, several pairs of them at the same time; in turn."""
        for pairs in rounds(sorted(peers)):
            await asyncio.gather(
                *(self._measure_pair(*pair, again(pair[0].name, pair[1].name)) for pair in pairs)
            )

    async def _measure_pair(self, one: Peer, other: Peer, again: bool) -> None:
        names, boots = (one.name, other.name), (one.boot, other.boot)
        before = self._pairs.fresh(names, boots)
        link = Link(one.address, 0)
        try:
            found, up_bytes_s = await self._one_way(one, other, _transfers(before, again))
            link = replace(
                link, to_head=found.failure, connect_s=found.connect_s, up_bytes_s=up_bytes_s,
                down_bytes_s=found.down_bytes_s,
            )  # fmt: skip
            back, _ = await self._one_way(other, one, False)
            link = replace(link, to_worker=back.failure)
        except Unreported as problem:
            link = replace(link, unreported=str(problem))
        self._pairs.keep(names, boots, link, before)

    async def _one_way(
        self, listens: Peer, connects: Peer, transfer: bool
    ) -> tuple[Outcome, float | None]:
        """What the worker that connects reports, and what then came to the other one."""
        trial = Trial(secrets.token_hex(32), listens.address, 0, transfer, "listen")
        with self.asking.ask(listens.name, listens.boot, trial) as door:
            at = await door.outcome()
            if at.deaf:
                where = f"its own address {listens.address}"
                raise Unreported(f"{listens.name} cannot listen at {where}: {at.deaf}")
            trial = replace(trial, port=at.listens, part="connect")
            with self.asking.ask(connects.name, connects.boot, trial) as asked:
                found = await asked.outcome()
            if found.failure or not transfer:
                return found, None
            reached = await door.outcome(lambda one: one.failure or one.down_bytes_s is not None)
            if reached.failure:
                raise Unreported(f"{listens.name} cannot receive data: {reached.failure}")
            return found, reached.down_bytes_s

    async def _try(self, peer: Peer, transfer: bool) -> Link:
        trial = Trial(secrets.token_hex(32), self._host, self._port, transfer)
        link = Link(self._host, self._port)
        try:
            door = await asyncio.to_thread(Door, self._host, self._port)
        except OSError as problem:
            return replace(link, head_deaf=problem.strerror or str(problem))
        guest = asyncio.ensure_future(_receive(door, trial))
        try:
            with self.asking.ask(peer.name, peer.boot, trial) as asked:
                found = await asked.outcome()
                link = replace(
                    link, to_head=found.failure, own=found.own, joined=found.joined,
                    connect_s=found.connect_s, down_bytes_s=found.down_bytes_s,
                    worker_deaf=found.deaf, to_worker=await _knock(peer.address, found),
                )  # fmt: skip
                if not found.failure:
                    seen, up_bytes_s = await asyncio.wait_for(guest, REPORT_S)
                    link = replace(link, seen=seen, up_bytes_s=up_bytes_s)
                return link
        except (Unreported, asyncio.TimeoutError) as problem:
            return replace(link, unreported=str(problem) or "its connection did not come")
        except Failed as problem:
            return replace(link, to_head=str(problem))
        finally:
            guest.add_done_callback(lambda _: door.close())
            guest.cancel()
            await asyncio.wait({guest})


async def _receive(door: Door, trial: Trial) -> tuple[str, float | None]:
    """Where the worker's connection comes from, and the bytes/s that came in a transfer."""
    link, seen = await door.admit(*words(trial.token, "to head"))
    if trial.transfer:
        return seen, await link_trial.transfer(link, sends_first=False)
    link.close()
    return seen, None


async def _knock(address: str, found: Outcome) -> str:
    """Why the worker's port cannot be connected to, "" if it can, or if there is none."""
    if not found.listens:
        return ""
    try:
        link, _ = await link_trial.connect(address, found.listens, *words(found.token, "to worker"))
    except Failed as problem:
        return str(problem)
    link.close()
    return ""
