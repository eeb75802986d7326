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
from caovand.daemon.shared import now

ALL_S = 120.0
"""All trials of one inspection, which may take 300 s and also plans."""
Found = TypeVar("Found")


class Peer(NamedTuple):
    """A worker in one run of its daemon, `boot`, whose ranks will listen at `address`."""

    name: str
    boot: str
    address: str


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


async def with_head(asking: Asking, door: Door, at: Link, peer: Peer, transfer: bool) -> Link:
    """The link to a worker that connects to `door`, which is where `at` says.

    Raises Unreported where the worker reports nothing.
    """
    trial, link = Trial(secrets.token_hex(32), at.host, at.port, transfer), at
    guest = asyncio.ensure_future(_receive(door, trial))
    try:
        with asking.ask(peer.name, peer.boot, trial) as asked:
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
    except asyncio.TimeoutError:
        return replace(link, unreported="its connection did not come")
    except Failed as problem:
        return replace(link, to_head=str(problem))
    finally:
        guest.cancel()
        await asyncio.wait({guest})


async def one_way(
    asking: Asking, listens: Peer, connects: Peer, transfer: bool
) -> tuple[Outcome, float | None]:
    """What the worker that connects reports, and what then came to the other one.

    Raises Unreported.
    """
    trial = Trial(secrets.token_hex(32), listens.address, 0, transfer, "listen")
    with asking.ask(listens.name, listens.boot, trial) as door:
        at = await door.outcome()
        if at.deaf:
            where = f"its own address {listens.address}"
            raise Unreported(f"{listens.name} cannot listen at {where}: {at.deaf}")
        trial = replace(trial, port=at.listens, part="connect")
        with asking.ask(connects.name, connects.boot, trial) as asked:
            found = await asked.outcome()
        if found.failure or not transfer:
            return found, None
        reached = await door.outcome(lambda one: one.failure or one.down_bytes_s is not None)
        if reached.failure:
            raise Unreported(f"{listens.name} cannot receive data: {reached.failure}")
        return found, reached.down_bytes_s


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
