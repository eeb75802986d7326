"""Connections to the engine, reused if its server keeps them open, else opened ahead of need.

A request that crosses with the server's closing of an idle connection would be lost. So no
connection is used after being idle for half of the server's limit, nor one that an earlier engine
accepted.
"""

from __future__ import annotations

import asyncio

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

from caovand.gateway.facts import Facts
from caovand.gateway.spares import SpareConnector

CONNECT_S = 5.0
IDLE_SHARE = 0.5
"""The fraction of the server's keep-alive limit that a connection may stay idle."""


class Upstream:
    """The connections to one engine at a time."""

    def __init__(self) -> None:
        self._generation = 0
        self._session: ClientSession | None = None
        self._closing: set[asyncio.Future[None]] = set()  # the loop itself keeps none alive

    def session(self, facts: Facts) -> ClientSession:
        """A session with the current engine; sessions with earlier ones are closed."""
        if self._session is None or facts.engine.generation != self._generation:
            if self._session is not None:
                closing = asyncio.ensure_future(self._session.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
            self._generation, self._session = facts.engine.generation, _open(facts)
        return self._session

    async def close(self) -> None:
        """Close all of them."""
        await asyncio.gather(*self._closing)
        if self._session is not None:
            await self._session.close()


def _open(facts: Facts) -> ClientSession:
    # The engine is the daemon's own child on this machine: its certificate is not checked.
    idle_s = facts.keep_alive_s * IDLE_SHARE
    if not idle_s:
        connector = TCPConnector(limit=0, ssl=False, force_close=True)
    elif facts.reuses_connections:
        connector = TCPConnector(limit=0, ssl=False, keepalive_timeout=idle_s)
    else:
        connector = SpareConnector(idle_s)
    return ClientSession(
        connector=connector,
        timeout=ClientTimeout(total=None, sock_connect=CONNECT_S),
        auto_decompress=False,
        cookie_jar=DummyCookieJar(),
    )
