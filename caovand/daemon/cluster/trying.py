"""A worker's part of a trial: it connects or listens as the head orders, and reports."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import replace

from caovand.adapters import link_trial
from caovand.adapters.link_trial import Door, Failed
from caovand.core import addresses
from caovand.core.cluster.link import LONGEST, Outcome, Trial, Way, words
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
            self._report(await self._connect(trial, "between"))
            return
        with contextlib.ExitStack() as stack:
            door, deaf = None, ""
            try:
                door = stack.enter_context(contextlib.closing(Door(address)))
            except OSError as problem:
                deaf = (problem.strerror or str(problem))[:LONGEST]
            found = Outcome(trial.token)
            if trial.part == "head":
                found = await self._connect(trial, "to head")
                found = replace(found, joined=await _resolved(self._head))
            self._report(replace(found, listens=door.port if door else 0, deaf=deaf))
            if door is not None:
                await self._let_in(door, trial)

    async def _let_in(self, door: Door, trial: Trial) -> None:
        """Let the other side connect; another worker also sends, where data is to be sent."""
        among = trial.part == "listen"
        way = words(trial.token, "between" if among else "to worker")
        with contextlib.suppress(asyncio.TimeoutError):
            link, _ = await asyncio.wait_for(door.admit(*way), LISTEN_S)
            if not among or not trial.transfer:
                link.close()
                return
            assert self.outcome is not None
            try:
                reached = await link_trial.transfer(link, sends_first=False)
            except Failed as problem:
                self._report(replace(self.outcome, failure=str(problem)[:LONGEST]))
            else:
                self._report(replace(self.outcome, down_bytes_s=reached))

    def _report(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._changed.wake()

    async def _connect(self, trial: Trial, by: Way) -> Outcome:
        outcome = Outcome(trial.token)
        try:
            link, connect_s = await link_trial.connect(
                trial.host, trial.port, *words(trial.token, by)
            )
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
