"""Connections opened ahead of need, to an engine that closes each one after its answer."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from aiohttp import ClientError, ClientRequest, ClientTimeout, TCPConnector
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

SPARES = 2
"""One for the next request, one for another that arrives before the first is replaced. Each
occupies a thread of llama-server, which has four more than requests that it answers at once.
"""

REPLACEMENT_DELAY_S = 0.005
"""Delay of a replacement: the request that took the spare must first reach the engine."""


class SpareConnector(TCPConnector):
    """Replaces each connection that a request uses with a spare for the next request.

    No connection carries two requests. A spare that nobody has taken within `idle_s` is closed: an
    idle engine has none.
    """

    def __init__(self, idle_s: float) -> None:
        super().__init__(limit=0, ssl=False, force_close=True)
        self._idle_s = idle_s
        self._spares: deque[tuple[Connection, asyncio.TimerHandle]] = deque()
        self._opening: set[asyncio.Future[None]] = set()  # the loop itself keeps none alive

    async def connect(
        self, req: ClientRequest, traces: list[Trace], timeout: ClientTimeout
    ) -> Connection:
        """A spare if there is one, else a new connection."""
        connection = self._take() or await super().connect(req, traces, timeout)
        while len(self._spares) + len(self._opening) < SPARES:
            self._opening.add(asyncio.ensure_future(self._open(req, timeout)))
        return connection

    def close(self, **options: Any) -> Any:
        """Close all connections, spares included."""
        while self._spares:
            self._drop()
        return super().close(**options)

    def _take(self) -> Connection | None:
        now = asyncio.get_running_loop().time()
        while self._spares:
            spare, expiry = self._spares[0]
            if not spare.closed and now < expiry.when():
                expiry.cancel()
                self._spares.popleft()
                return spare
            self._drop()
        return None

    async def _open(self, req: ClientRequest, timeout: ClientTimeout) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            await asyncio.sleep(REPLACEMENT_DELAY_S)
            spare = await super().connect(req, [], timeout)
        except (ClientError, OSError, asyncio.TimeoutError):
            return  # a request that finds no spare learns of it
        finally:
            self._opening.discard(task)
        expiry = asyncio.get_running_loop().call_later(self._idle_s, self._drop)
        self._spares.append((spare, expiry))

    def _drop(self) -> None:
        """Close the oldest spare, which expires first."""
        spare, expiry = self._spares.popleft()
        expiry.cancel()
        spare.close()
