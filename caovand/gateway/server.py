"""Serve clients at a listening socket, once the daemon has sent its facts."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aiohttp import web

from caovand.adapters.servers.server_process import GATEWAY
from caovand.gateway import garbage, health, names
from caovand.gateway.application import Gateway
from caovand.gateway.connections import Connections
from caovand.gateway.desk import Desk
from caovand.gateway.link import Link
from caovand.gateway.survivor import Marks
from caovand.gateway.upstream import Upstream

LINGER_S = 1.0
END_S = 1.0
"""Time to deliver errors to clients when the gateway stops."""
ACCEPTED_AT_ONCE = 16
"""Connections accepted before others have their turn: about a millisecond."""


@dataclass(frozen=True)
class RunningGateway:
    """A running gateway, with everything that has to be stopped."""

    desk: Desk
    upstream: Upstream
    connections: Connections
    library: web.Server
    """The library's server, which speaks HTTP on each connection."""
    listening: asyncio.AbstractServer
    tasks: list[asyncio.Task[None]]
    """The loop does not keep tasks alive."""

    async def end(self) -> None:
        """Stop serving; every request ends with an error that says when to send it again."""
        self.listening.close()
        self.desk.close()
        await self.library.shutdown(END_S / 2)  # which takes up to twice as long

    async def stop(self) -> None:
        """Stop serving at once."""
        self.listening.close()
        for task in self.tasks:
            task.cancel()
        await self.upstream.close()


async def start(
    listener: socket.socket, daemon: Path, max_body_bytes: int, marks: Marks
) -> RunningGateway:
    """Serve on `listener` as long as the loop runs; waits for the daemon's facts."""
    loop = asyncio.get_running_loop()
    link = Link(daemon, loop.time, max_body_bytes)
    desk, upstream = Desk(await link.first(), loop.time), Upstream()
    connections = Connections(lambda: desk.facts.limits, marks)
    # A compressed body goes to the engine unchanged: uncompressed, a small one could fill the
    # memory.
    runner = web.AppRunner(
        Gateway(desk, upstream, connections).app,
        access_log=None,
        lingering_time=LINGER_S,
        auto_decompress=False,
    )
    await runner.setup()
    library = runner.server
    assert library is not None
    listed = partial(names.list_names, upstream)
    healthy = partial(health.is_healthy, upstream)
    collecting = garbage.collect_when_idle(lambda: desk.is_idle)
    works = (desk.run(), desk.check_health(healthy), link.run(desk, listed), collecting)
    tasks = [asyncio.ensure_future(work) for work in works]
    # asyncio accepts as many connections in one go as it lets wait.
    listening = await loop.create_server(
        partial(connections.connection, library), sock=listener, backlog=ACCEPTED_AT_ONCE
    )
    listener.listen(GATEWAY.backlog)
    return RunningGateway(desk, upstream, connections, library, listening, tasks)
