"""The links between the head and its workers, tried one after the other while no engine runs."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace

from caovand.adapters import link_trial
from caovand.adapters.link_trial import Door, Failed
from caovand.core import addresses
from caovand.core.cluster.link import LONGEST, Link, Outcome, Trial, words
from caovand.core.facts.inventory import Network
from caovand.daemon.cluster.part import Changed
from caovand.daemon.shared import now

REPORT_S = 60.0
"""How long a worker may take to report: it tries several addresses of the head's name."""
LISTEN_S = 90.0
FRESH_S = 3600.0
"""Figures that are older are measured anew, and no longer count."""
MOST_LINKS = 256


class WorkerLost(Exception):
    """Whoever was to report on a trial."""


@dataclass
class Asked:
    """A trial under way, for this run of a worker's daemon."""

    trial: Trial
    boot: str
    outcome: asyncio.Future[Outcome]


@dataclass
class Known:
    """A link to one run of a worker's daemon, its `boot`; its oldest figure is of `measured`.

    One that is `stale` is to be tried anew before it counts.
    """

    boot: str
    link: Link
    measured: float
    stale: bool = False


class Links:
    """What the head knows of the links to its workers, whose ranks will meet at `host` and `port`.

    `changed` wakes what sends the orders.
    """

    def __init__(self, host: str, port: int, changed: Changed) -> None:
        self._host, self._port, self._changed = host, port, changed
        self._known: dict[str, Known] = {}
        self._asked: dict[str, Asked] = {}
        self.turn = asyncio.Lock()
        """Whoever measures holds it: the port is one."""

    def of(self, name: str, boot: str) -> Link | None:
        """The link to the worker `name`, None if none is known of this run of its daemon."""
        known = self._found(name, boot)
        return known.link if known and not known.stale else None

    def works(self, name: str, boot: str) -> bool:
        """Whether that link is known to work."""
        link = self.of(name, boot)
        return link is not None and link.works

    def network(self, boots: Mapping[str, str]) -> Network | None:
        """The slowest of the links to these workers, each with its boot; None if one is unknown."""
        links = [self.of(name, boot) for name, boot in boots.items()]
        ways = [way for one in links if one for way in (one.up_bytes_s, one.down_bytes_s) if way]
        trips = [one.connect_s for one in links if one and one.connect_s]
        if not links or len(ways) < 2 * len(links) or len(trips) < len(links):
            return None
        return Network(min(ways), max(trips))

    def trial(self, name: str) -> Trial | None:
        """What this worker is to try now."""
        asked = self._asked.get(name)
        return asked.trial if asked else None

    def heard(self, outcome: Outcome | None) -> None:
        """What a worker reports."""
        for asked in self._asked.values() if outcome else ():
            if outcome and outcome.token == asked.trial.token and not asked.outcome.done():
                asked.outcome.set_result(outcome)

    def keep(self, boots: Mapping[str, str]) -> None:
        """Give up the trials of all workers but these, each with the run of its daemon."""
        for name, asked in self._asked.items():
            if boots.get(name) != asked.boot and not asked.outcome.done():
                asked.outcome.set_exception(WorkerLost)

    def forget_failures(self) -> None:
        """Forget that links did not work, and keep their figures."""
        for known in self._known.values():
            known.stale = known.stale or not known.link.works

    async def measure(self, name: str, boot: str, address: str, *, again: bool = False) -> None:
        """Try the link to a worker whose ranks will listen at `address`; in turn.

        Data is sent the first time, `again`, and where the figures are old; that both can connect
        is found out each time.
        """
        known = self._found(name, boot)
        fresh = known is not None and now() - known.measured < FRESH_S
        before = known.link if known and fresh else None
        transfer = again or before is None or not before.up_bytes_s or not before.down_bytes_s
        at = known.measured if known and fresh else now()
        link = await self._try(name, boot, address, transfer)
        self._known.pop(name, None)
        if len(self._known) >= MOST_LINKS:
            del self._known[next(iter(self._known))]
        self._known[name] = Known(boot, link.after(before), at)

    def _found(self, name: str, boot: str) -> Known | None:
        known = self._known.get(name)
        return known if known and known.boot == boot else None

    async def _try(self, name: str, boot: str, address: str, transfer: bool) -> Link:
        trial = Trial(secrets.token_hex(32), self._host, self._port, transfer)
        link = Link(self._host, self._port)
        try:
            door = await asyncio.to_thread(Door, self._host, self._port)
        except OSError as problem:
            return replace(link, head_deaf=problem.strerror or str(problem))
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        guest = asyncio.ensure_future(_receive(door, trial))
        self._asked[name] = Asked(trial, boot, outcome)
        self._changed.wake()
        try:
            found = await asyncio.wait_for(outcome, REPORT_S)
            link = replace(
                link, to_head=found.failure, own=found.own, joined=found.joined,
                connect_s=found.connect_s, down_bytes_s=found.down_bytes_s,
                worker_deaf=found.deaf, to_worker=await _knock(address, found),
            )  # fmt: skip
            if not found.failure:
                seen, up_bytes_s = await asyncio.wait_for(guest, REPORT_S)
                link = replace(link, seen=seen, up_bytes_s=up_bytes_s)
            return link
        except asyncio.TimeoutError:
            return replace(link, unreported=f"it reported nothing for {REPORT_S:.0f} s")
        except WorkerLost:
            return replace(link, unreported="its daemon ended, or was cut off, while it was tried")
        except Failed as problem:
            return replace(link, to_head=str(problem))
        finally:
            del self._asked[name]
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


class Trying:
    """A worker's part: it carries out the head's last trial, and has its `outcome`.

    `head` is where it joins, HOST:PORT.
    """

    def __init__(self, head: str, changed: Changed) -> None:
        self.outcome: Outcome | None = None
        self._head, self._changed = head, changed
        self._token = ""
        self._task: asyncio.Task[None] | None = None

    def follow(self, trial: Trial | None, address: str) -> None:
        """Begin this trial if it is new, and end the one before; ranks will listen at `address`."""
        token = trial.token if trial else ""
        if token == self._token:
            return
        if self._task is not None:
            self._task.cancel()
        self._token, self.outcome, self._task = token, None, None
        if trial is not None:
            self._task = asyncio.ensure_future(self._carry_out(trial, address))

    async def _carry_out(self, trial: Trial, address: str) -> None:
        with contextlib.ExitStack() as stack:
            door, deaf = None, ""
            try:
                door = stack.enter_context(contextlib.closing(Door(address)))
            except OSError as problem:
                deaf = (problem.strerror or str(problem))[:LONGEST]
            outcome = await self._connect(trial)
            self.outcome = replace(outcome, listens=door.port if door else 0, deaf=deaf)
            self._changed.wake()
            if door is not None:
                way = words(trial.token, "to worker")
                with contextlib.suppress(asyncio.TimeoutError):
                    link, _ = await asyncio.wait_for(door.admit(*way), LISTEN_S)
                    link.close()

    async def _connect(self, trial: Trial) -> Outcome:
        outcome = Outcome(trial.token, joined=await _resolved(self._head))
        way = words(trial.token, "to head")
        try:
            link, connect_s = await link_trial.connect(trial.host, trial.port, *way)
            own = link_trial.plain(link.getsockname())
            if not trial.transfer:
                link.close()
                return replace(outcome, connect_s=connect_s, own=own)
            down_bytes_s = await link_trial.transfer(link, sends_first=True)
        except Failed as problem:
            return replace(outcome, failure=str(problem)[:LONGEST])
        return replace(outcome, connect_s=connect_s, own=own, down_bytes_s=down_bytes_s)


async def _resolved(endpoint: str) -> str:
    """The address of HOST:PORT, "" if its host has none."""
    host, port = addresses.split(endpoint)
    with contextlib.suppress(OSError, UnicodeError, RuntimeError):
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return link_trial.plain(found[0][4])
    return ""
