"""The head's side of a trial, and how much time all trials of a start have together."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NamedTuple, TypeVar

from caovand.adapters import link_trial
from caovand.adapters.link_trial import Door, Failed
from caovand.core.cluster.link import Link, Outcome, Trial, words
from caovand.daemon.cluster.asking import REPORT_S, Asking, Unreported
from caovand.daemon.cluster.trying import connect
from caovand.daemon.shared import now

ALL_S = 120.0
"""All trials of one inspection, which may take 300 s and also plans."""
Found = TypeVar("Found")


class Peer(NamedTuple):
    """A worker in one run of its daemon, `boot`, whose ranks will listen at `address`."""

    name: str
    boot: str
    address: str


class Doors(NamedTuple):
    """Where the head listens: at the port where ranks meet, and at its own address."""

    meeting: Door
    own: Door


class Pace:
    """The time that trials have together, from now on; `tell` shows how far they are.

    `mute` are workers that have reported nothing of one: nobody waits for them again.
    """

    def __init__(self, tell: Callable[[str], None] = lambda _: None) -> None:
        self.tell = tell
        self.mute: set[str] = set()
        self._until = now() + ALL_S

    @property
    def over(self) -> bool:
        """Whether no time is left."""
        return now() >= self._until

    async def within(self, work: Awaitable[Found]) -> Found | None:
        """What the work finds in the time that is left, None where that is too short."""
        try:
            return await asyncio.wait_for(work, max(self._until - now(), 0.0))
        except asyncio.TimeoutError:
            return None


async def with_head(asking: Asking, doors: Doors, at: Link, peer: Peer, transfer: bool) -> Link:
    """The link to a worker, of which `at` is known; Unreported where the worker reports nothing.

    Without a `transfer` it is only found out whether both connect to each other.
    """
    link, own = at, doors.own
    if not transfer:
        met, seen, _ = await _arrives(asking, doors.meeting, at.host, peer, False)
        link = replace(at, to_head=met.failure, own=met.own, joined=met.joined, seen=seen)
    if not link.to_head:
        came, _, up_bytes_s = await _arrives(asking, own, own.address, peer, transfer)
        link = replace(
            link, to_own=came.failure, connect_s=came.connect_s, up_bytes_s=up_bytes_s
        )  # fmt: skip
    went, down_bytes_s = await one_way(asking, peer, None, transfer)
    return replace(
        link, to_worker=went.failure, worker_deaf=went.deaf, down_bytes_s=down_bytes_s
    )  # fmt: skip


async def _arrives(
    asking: Asking, door: Door, host: str, peer: Peer, transfer: bool
) -> tuple[Outcome, str, float | None]:
    """What a worker reports that connects to a door of the head's at `host`, the address that its
    connection comes from, and what came in a transfer."""
    trial = Trial(secrets.token_hex(32), host, door.port, transfer)
    guest = asyncio.ensure_future(_receive(door, trial))
    found = Outcome(trial.token)
    try:
        with asking.ask(peer.name, peer.boot, trial) as asked:
            found = await asked.outcome()
            if found.failure:
                return found, "", None
            return found, *await asyncio.wait_for(guest, REPORT_S)
    except asyncio.TimeoutError:
        raise Unreported("its connection did not come") from None
    except Failed as problem:
        return replace(found, failure=str(problem)), "", None
    finally:
        guest.cancel()
        await asyncio.wait({guest})


async def one_way(
    asking: Asking, listens: Peer, connects: Peer | None, transfer: bool
) -> tuple[Outcome, float | None]:
    """What comes of a connection to a worker, and then came to it; the head connects, or another.

    Of one that is deaf it is that one's report. Raises Unreported.
    """
    trial = Trial(secrets.token_hex(32), listens.address, 0, transfer, "listen")
    with asking.ask(listens.name, listens.boot, trial) as door:
        at = await door.outcome()
        if at.deaf:
            return at, None
        trial = replace(trial, port=at.listens, part="connect")
        if connects is None:
            found = await connect(trial)
        else:
            with asking.ask(connects.name, connects.boot, trial) as asked:
                found = await asked.outcome()
        if found.failure or not transfer:
            return found, None
        reached = await door.outcome(lambda one: one.failure or one.bytes_s is not None)
        if reached.failure:
            raise Unreported(f"{listens.name} cannot receive data: {reached.failure}")
        return found, reached.bytes_s


async def _receive(door: Door, trial: Trial) -> tuple[str, float | None]:
    """Where the worker's connection comes from, and the bytes/s that came in a transfer."""
    link, seen = await door.admit(*words(trial.token))
    if trial.transfer:
        return seen, await link_trial.receive(link)
    link.close()
    return seen, None
