"""A worker's part in a port check: it listens, connects to the other nodes, and reports."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping
from dataclasses import replace

from caovand.adapters.network import own_address
from caovand.adapters.network.port_check import (
    Connection,
    address_text,
    connect,
    kernel_reason,
    listening,
)
from caovand.core import addresses
from caovand.core.cluster.link import MAX_TEXT, MEETING, PortCheck, PortCheckReport, handshake_words
from caovand.daemon.cluster.part import Changed


class Prober:
    """Runs the head's latest probe; its result is `reached`.

    `name` is this worker's name, and `head` the HOST:PORT where it joins. New results wake
    `changed`.
    """

    def __init__(self, name: str, head: str, changed: Changed) -> None:
        self.reached: PortCheckReport | None = None
        self._name, self._head, self._changed = name, head, changed
        self._token = ""
        self._task: asyncio.Task[None] | None = None
        self._targets: asyncio.Future[Mapping[str, tuple[str, int]]]

    def follow(self, probe: PortCheck | None, address: str) -> None:
        """Run this probe if it is new, and end the previous one; ranks will listen at `address`."""
        token = probe.token if probe else ""
        if token != self._token:
            if self._task is not None:
                self._task.cancel()
            self._token, self.reached, self._task = token, None, None
            if token:
                self._targets = asyncio.get_running_loop().create_future()
                self._task = asyncio.ensure_future(self._carry_out(token, address))
        if probe and probe.targets and not self._targets.done():
            self._targets.set_result(probe.targets)

    async def _carry_out(self, token: str, address: str) -> None:
        async with contextlib.AsyncExitStack() as stack:
            try:
                listener = listening(address, 0, *handshake_words(token))
                _, port = await stack.enter_async_context(listener)
                reached = PortCheckReport(token, port)
            except OSError as problem:
                reached = PortCheckReport(token, deaf=kernel_reason(problem)[:MAX_TEXT])
            self._report(reached)
            targets = await self._targets
            others = [name for name in targets if name != self._name]
            made = await asyncio.gather(
                *(connect(*targets[name], *handshake_words(token)) for name in others)
            )
            at = dict(zip(others, made, strict=True))
            meeting = at.get(MEETING, Connection())
            host = targets.get(MEETING, ("", 0))
            self._report(replace(
                reached,
                failures={name: one.failure for name, one in at.items()},
                own=meeting.own or _own_towards(await _resolved(*host)),
                seen=meeting.seen,
                joined=await _resolved(*addresses.split_address(self._head)),
            ))  # fmt: skip
            await asyncio.Future()  # keep listening until the head has all nodes' results

    def _report(self, reached: PortCheckReport) -> None:
        self.reached = reached
        self._changed.wake()


def _own_towards(address: str) -> str:
    """Our address on the route to another one, as a firewall there sees it; "" without a route."""
    with contextlib.suppress(OSError):
        if address:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            return own_address.address_towards(family, address)
    return ""


async def _resolved(host: str, port: int) -> str:
    """A host's address; "" if it has none."""
    with contextlib.suppress(OSError, UnicodeError, RuntimeError):
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return address_text(found[0][4])
    return ""
