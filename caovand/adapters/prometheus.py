"""The daemon's own metrics for Prometheus, served on the loop; imported only where wanted.

Anybody on the network may connect, so everything a client can use up is bounded: connections,
the time of each, the bytes of a request, and how often values are collected.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, MetricsHandler
from prometheus_client.core import Metric

from caovand.adapters import exposition, listening

MOST_CONNECTIONS = 8
EXCHANGE_S = 5.0  # from accepting a connection to the last byte of its answer
REQUEST_BYTES = 8192
FRESH_S = 1.0  # how long collected values serve every scrape, and an answer the same request
MOST_ANSWERS = 16  # made within FRESH_S: each is milliseconds of the daemon's loop
BUSY = b"HTTP/1.0 503 Service Unavailable\r\n\r\n"
BACKLOG = 16  # also what one turn of the loop accepts: a flood must not hold it up


class Metrics:
    """What a scrape shows, made from the status document that `read` gives."""

    def __init__(
        self, read: Callable[[], Mapping[str, Any]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._clock = read, clock
        self._stale_at: float | None = None
        self._kept: tuple[Metric, ...] = ()

    def collect(self) -> tuple[Metric, ...]:
        """All metrics; called by the client library."""
        now = self._clock()
        if self._stale_at is None or now >= self._stale_at:
            self._kept = tuple(exposition.metrics(self._read()))
            self._stale_at = now + FRESH_S
        return self._kept

    def describe(self) -> list[Metric]:
        """Nothing: so that registering asks for no values."""
        return []


class _Scrape(MetricsHandler):
    """The library's answer to a request that has been read already."""

    def setup(self) -> None:
        """`request` is a pair of files instead of a socket."""
        self.rfile, self.wfile = self.request

    def finish(self) -> None:
        """The caller sends what was written."""


class Server:
    """Answers scrapes on `listener`."""

    def __init__(self, listener: socket.socket, read: Callable[[], Mapping[str, Any]]) -> None:
        registry = CollectorRegistry()
        registry.register(Metrics(read))
        self._handler = _Scrape.factory(registry)
        self._listener = listener
        self._open = 0
        self._answers: dict[bytes, bytes] = {}
        self._stale_at = float("-inf")
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        """Begin to answer."""
        self._server = await asyncio.start_server(
            self._serve, sock=self._listener, limit=REQUEST_BYTES, backlog=BACKLOG
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._open >= MOST_CONNECTIONS:
                return
            self._open += 1
            try:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._exchange(reader, writer), EXCHANGE_S)
            finally:
                self._open -= 1
        finally:
            # `close` would wait for a client that does not read. In Python 3.10 a transport that
            # has closed by itself, after a long answer, no longer knows its loop.
            with contextlib.suppress(AttributeError):
                writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            return
        writer.write(self._answer(request))
        with contextlib.suppress(OSError):
            writer.close()
            await writer.wait_closed()

    def _answer(self, request: bytes) -> bytes:
        now = time.monotonic()
        if now >= self._stale_at:
            self._answers.clear()
            self._stale_at = now + FRESH_S
        if request not in self._answers:
            if len(self._answers) >= MOST_ANSWERS:
                return BUSY
            self._answers[request] = self._made(request)
        return self._answers[request]

    def _made(self, request: bytes) -> bytes:
        answer = io.BytesIO()
        try:
            self._handler((io.BytesIO(request), answer), ("", 0), None)
        except ValueError:  # the library's, of an address such as `http://[`
            return b"HTTP/1.0 400 Bad Request\r\n\r\n"
        return answer.getvalue()


async def serve(listen: str, read: Callable[[], Mapping[str, Any]]) -> Server:
    """Serve on ADDRESS:PORT as long as the loop runs; OSError where that cannot be."""
    listener = listening.on(listen, BACKLOG)
    server = Server(listener, read)
    await server.start()
    return server
