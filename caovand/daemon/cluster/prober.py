"""A worker's part in a probe: it listens, connects to the head's ports, and reports."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from caovand.adapters.network import own_address
from caovand.adapters.network.port_check import address_text, connect, kernel_reason, listening
from caovand.core import addresses
from caovand.core.cluster.link import MAX_TEXT, Probe, ProbeReport, Trial, handshake_words
from caovand.daemon.cluster.part import Signal


class Prober:
    """Runs the head's latest probe; its result is `report`, None until then.

    `head` is the HOST:PORT where this worker joins. New results wake `changed`.
    """

    def __init__(self, head: str, changed: Signal) -> None:
        self.report: ProbeReport | None = None
        self._head, self._changed = head, changed
        self._probe: Probe | None = None
        self._task: asyncio.Task[None] | None = None

    def follow(self, probe: Probe | None, address: str) -> None:
        """Run this probe if it is new, and cancel the previous one; ranks will listen at
        `address`.
        """
        if probe == self._probe:
            return
        if self._task is not None:
            self._task.cancel()
        self._probe, self.report, self._task = probe, None, None
        if probe is not None:
            self._task = asyncio.ensure_future(self._run(probe, address))

    async def _run(self, probe: Probe, address: str) -> None:
        words = handshake_words(probe.token)
        async with contextlib.AsyncExitStack() as stack:
            failures: dict[Trial, str] = {}
            port = 0
            try:
                _, port = await stack.enter_async_context(listening(address, 0, *words))
            except OSError as problem:
                failures["listen-worker"] = kernel_reason(problem)[:MAX_TEXT]
            rendezvous, head = await asyncio.gather(
                connect(*probe.rendezvous, *words), connect(*probe.head, *words)
            )
            if rendezvous.failure:
                failures["reach-rendezvous"] = rendezvous.failure
            if head.failure:
                failures["reach-head"] = head.failure
            self.report = ProbeReport(
                probe.token,
                port,
                failures,
                own=rendezvous.own or _local_address(await _resolve(*probe.rendezvous)),
                seen=rendezvous.seen,
                joined=await _resolve(*addresses.split_address(self._head)),
            )
            self._changed.wake()
            await asyncio.Future()  # keep listening until the head has connected


def _local_address(address: str) -> str:
    """Our address on the route to another one, as a firewall there sees it; "" without a route."""
    with contextlib.suppress(OSError):
        if address:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            return own_address.address_towards(family, address)
    return ""


async def _resolve(host: str, port: int) -> str:
    """Resolve a host to its first address; "" if it has none."""
    with contextlib.suppress(OSError, UnicodeError, RuntimeError):
        loop = asyncio.get_running_loop()
        (*_, end), *_ = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return address_text(end)
    return ""
