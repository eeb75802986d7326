"""A worker's part of a trial: it connects or listens as the head orders, and reports."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import replace

from caovand.adapters import link_trial, own_address
from caovand.adapters.link_trial import Door, Failed
from caovand.core import addresses
from caovand.core.cluster.link import LONGEST, Outcome, Trial, words
from caovand.daemon.cluster.part import Changed

LISTEN_S = 90.0


class Trying:
    """Carries out the head's last trial, and has its `outcome`.

    `head` is where this worker joins, HOST:PORT.
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
        if trial.part == "connect":
            found = await connect(trial)
            own = found.own or _own_towards(await _resolved(trial.host, trial.port))
            joined = await _resolved(*addresses.split(self._head))
            self._report(replace(found, own=own, joined=joined))
            return
        try:
            door = Door(address)
        except OSError as problem:
            deaf = (problem.strerror or str(problem))[:LONGEST]
            self._report(Outcome(trial.token, deaf=deaf))
            return
        with contextlib.closing(door):
            self._report(Outcome(trial.token, listens=door.port))
            await self._let_in(door, trial)

    async def _let_in(self, door: Door, trial: Trial) -> None:
        """Let the other side connect, which also sends where data is to be sent."""
        with contextlib.suppress(asyncio.TimeoutError):
            link, _ = await asyncio.wait_for(door.admit(*words(trial.token)), LISTEN_S)
            if not trial.transfer:
                link.close()
                return
            assert self.outcome is not None
            try:
                reached = await link_trial.receive(link)
            except Failed as problem:
                self._report(replace(self.outcome, failure=str(problem)[:LONGEST]))
            else:
                self._report(replace(self.outcome, bytes_s=reached))

    def _report(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._changed.wake()


async def connect(trial: Trial) -> Outcome:
    """Connect as a trial says, and send where data is to be sent."""
    outcome = Outcome(trial.token)
    try:
        link, connect_s = await link_trial.connect(trial.host, trial.port, *words(trial.token))
        outcome = replace(outcome, connect_s=connect_s, own=link_trial.plain(link.getsockname()))
        if trial.transfer:
            await link_trial.send(link)
        else:
            link.close()
    except Failed as problem:
        return replace(outcome, failure=str(problem)[:LONGEST])
    return outcome


def _own_towards(address: str) -> str:
    """Our address on the route to another one, which a firewall there sees; "" without a route."""
    with contextlib.suppress(OSError):
        if address:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            return own_address.towards(family, address)
    return ""


async def _resolved(host: str, port: int) -> str:
    """The address of a host, "" if it has none."""
    with contextlib.suppress(OSError, UnicodeError, RuntimeError):
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return link_trial.plain(found[0][4])
    return ""
