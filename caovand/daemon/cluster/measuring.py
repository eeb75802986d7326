"""The links between all nodes, tried while no engine runs: the head's, and those of workers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from caovand.adapters.link_trial import Door
from caovand.core.cluster.link import Link, Outcome, rounds
from caovand.core.facts.inventory import Network
from caovand.daemon.cluster.asking import Asking, Unreported
from caovand.daemon.cluster.part import Changed
from caovand.daemon.cluster.trials import Doors, Pace, Peer, one_way, with_head
from caovand.daemon.shared import now

FRESH_S = 3600.0
"""Figures that are older are measured anew, and no longer count."""
MAX_LINKS = 256
MAX_PAIRS = 63 * 62 // 2
"""Those of the most workers that a cluster can have."""


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
        return known is not None and known.link.fails

    def forget_failures(self) -> None:
        """Forget that links did not work, and keep their figures."""
        for known in self._known.values():
            known.stale = known.stale or known.link.fails

    def fresh(self, names: Hashable, boots: Hashable) -> Known | None:
        """What is known of a link in these runs, stale or not; None where its figures are old."""
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
    """Whether data is to be sent: `again`, or since no figures are known that are `fresh`."""
    return again or before is None or not (before.link.up_bytes_s and before.link.down_bytes_s)


class Links:
    """What the head knows of the links to its workers, whose ranks will meet at `host` and `port`,
    and of those between them.

    `changed` wakes what sends the orders.
    """

    def __init__(self, host: str, port: int, changed: Changed) -> None:
        self._host, self._port = host, port
        self._known, self._pairs = Memory(MAX_LINKS), Memory(MAX_PAIRS)
        self.asking = Asking(changed)
        self.turn = asyncio.Lock()
        """Whoever measures holds it: the port is one, and so is a worker's trial."""

    def of(self, name: str, boot: str) -> Link | None:
        """The link to the worker `name`, None if none is known of this run of its daemon."""
        return self._known.of(name, boot)

    def between(self, one: str, other: str, boots: Mapping[str, str]) -> Link | None:
        """The link between two workers, as if the first of their names were the head's."""
        names = one, other = _sorted(one, other)
        return self._pairs.of(names, (boots[one], boots[other]))

    def works(self, name: str, boot: str) -> bool:
        """Whether the link to a worker is known to work."""
        link = self.of(name, boot)
        return link is not None and link.works

    def has_failed(self, name: str, others: Collection[str]) -> bool:
        """Whether the last trial of a worker's link to the head, or to one of `others`, failed.

        A restart of its daemon changes none of them.
        """
        pairs = (_sorted(name, one) for one in others)
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

    async def measure(
        self, own: str, peers: Sequence[Peer], again: Callable[[str], bool], pace: Pace
    ) -> None:
        """Try the links to these workers, of a head whose rank listens at `own`; in turn.

        That both can connect is found out each time, of all at once. Then data is sent, by one
        after the other, where there are no figures: transfers at the same time share the link.
        """
        if not peers:
            return
        before = {peer: self._known.fresh(peer.name, peer.boot) for peer in peers}
        with contextlib.ExitStack() as stack:
            doors, at = await self._opened(own, stack)
            if doors is None:
                for peer in peers:
                    self._known.keep(peer.name, peer.boot, at, before[peer])
                return
            pace.tell(f"connects to {len(peers)} worker{'s' * (len(peers) > 1)}")
            tries = (self._try(doors, at, peer, False, pace) for peer in peers)
            links = await asyncio.gather(*tries)
            untried = replace(at, unreported="no time was left for its trial")
            for peer, link in zip(peers, links, strict=True):
                known = before[peer]
                if link or known is None or known.link.fails:  # else what was found just before
                    self._known.keep(peer.name, peer.boot, link or untried, known)
            wanting = [
                (peer, link)
                for peer, link in zip(peers, links, strict=True)
                if link and not link.fails and _transfers(before[peer], again(peer.name))
            ]
            for number, (peer, link) in enumerate(wanting, 1):
                pace.tell(f"measures the link to {peer.name}, {number} of {len(wanting)}")
                measured = await self._try(doors, link, peer, True, pace)
                if measured is None:
                    return
                self._known.keep(peer.name, peer.boot, measured, before[peer])

    async def _opened(self, own: str, stack: contextlib.ExitStack) -> tuple[Doors | None, Link]:
        """The doors where ranks will meet and at the head's own address, which the stack closes,
        and what is known of any link then; None where one cannot be."""
        at = Link(self._host, self._port)
        try:
            meeting = await asyncio.to_thread(Door, self._host, self._port)
        except OSError as problem:
            return None, replace(at, head_deaf=problem.strerror or str(problem))
        stack.enter_context(contextlib.closing(meeting))
        at = replace(at, meets=meeting.address)
        try:
            door = await asyncio.to_thread(Door, own)
        except OSError as problem:
            return None, replace(at, own_deaf=problem.strerror or str(problem))
        stack.enter_context(contextlib.closing(door))
        return Doors(meeting, door), at

    async def _try(
        self, doors: Doors, at: Link, peer: Peer, transfer: bool, pace: Pace
    ) -> Link | None:
        """The link to a worker, of which `at` is known; None where no time is left."""
        try:
            return await pace.within(with_head(self.asking, doors, at, peer, transfer))
        except Unreported as problem:
            pace.mute |= problem.mute
            return replace(at, unreported=str(problem))

    async def measure_between(
        self, peers: Sequence[Peer], again: Callable[[str, str], bool], pace: Pace
    ) -> None:
        """Try the links between these workers, several pairs of them at the same time; in turn.

        As with the head: that they can connect first, of all of them.
        """
        turns = list(rounds(sorted(peers)))
        wanting: list[list[tuple[Peer, Peer, Known | None]]] = []
        for number, pairs in enumerate(turns, 1):
            pace.tell(f"lets workers connect to each other, round {number} of {len(turns)}")
            known = [(*pair, self._pairs.fresh(*_named(*pair))) for pair in pairs]
            works = await asyncio.gather(*(self._try_pair(*one, False, pace) for one in known))
            wanting.append([
                (one, other, before)
                for (one, other, before), work in zip(known, works, strict=True)
                if work and _transfers(before, again(one.name, other.name))
            ])  # fmt: skip
        wanting = [pairs for pairs in wanting if pairs]
        for number, known in enumerate(wanting, 1):
            pace.tell(f"measures links between workers, round {number} of {len(wanting)}")
            await asyncio.gather(*(self._try_pair(*one, True, pace) for one in known))

    async def _try_pair(
        self, one: Peer, other: Peer, before: Known | None, transfer: bool, pace: Pace
    ) -> bool:
        """Whether two workers connect to each other; False where no time is left to find out."""
        link = await pace.within(self._pair(one, other, transfer, pace))
        if link is None:
            return False
        self._pairs.keep(*_named(one, other), link, before)
        return not link.fails

    async def _pair(self, one: Peer, other: Peer, transfer: bool, pace: Pace) -> Link:
        link = Link(one.address, 0)
        if mute := sorted(pace.mute & {one.name, other.name}):
            return replace(link, unreported=f"{mute[0]} reported nothing of an earlier trial")
        try:
            up, up_bytes_s = await self._one_way(one, other, transfer)
            down, down_bytes_s = await self._one_way(other, one, transfer)
            link = replace(
                link, to_head=up.failure, connect_s=up.connect_s, up_bytes_s=up_bytes_s,
                to_worker=down.failure, down_bytes_s=down_bytes_s,
            )  # fmt: skip
        except Unreported as problem:
            pace.mute |= problem.mute
            link = replace(link, unreported=str(problem))
        return link

    async def _one_way(
        self, listens: Peer, connects: Peer, transfer: bool
    ) -> tuple[Outcome, float | None]:
        found, reached = await one_way(self.asking, listens, connects, transfer)
        if found.deaf:
            where = f"its own address {listens.address}"
            raise Unreported(f"{listens.name} cannot listen at {where}: {found.deaf}")
        return found, reached


def _sorted(one: str, other: str) -> tuple[str, str]:
    """The names of two workers as a link between them is known by."""
    return min(one, other), max(one, other)


def _named(one: Peer, other: Peer) -> tuple[tuple[str, str], tuple[str, str]]:
    """The names of two workers, and the runs of their daemons."""
    return (one.name, other.name), (one.boot, other.boot)
