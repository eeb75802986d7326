"""The daemon's own metrics for Prometheus, served on the loop; imported only if enabled.

Anyone on the network can connect, so everything that a client can use up is bounded: connections
and their rate, the duration of each, the bytes of a request, and how often values are rendered.
"""

from __future__ import annotations

import asyncio
import io
import socket
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from caovand.adapters.admission.door import TCP_BACKLOG, Door, Quota, peer_address
from caovand.adapters.servers import exposition, listening

MAX_CONNECTIONS = 32
CONNECTIONS_PER_ADDRESS = 8  # of one address
NEW_CONNECTIONS_PER_S = 20  # new ones a second from one address
EXCHANGE_S = 5.0  # from accepting a connection to the last byte of its answer
REQUEST_BYTES = 8192
END = b"\r\n\r\n"
FRESH_S = 1.0  # how long a rendered page is reused for further scrapes
OPEN_METRICS = "application/openmetrics-text"


class Metrics:
    """The metrics of a scrape, made from the status document that `read` returns."""

    def __init__(self, read: Callable[[], Mapping[str, Any]]) -> None:
        self._read = read

    def collect(self) -> tuple[Metric, ...]:
        """All metrics; called by the client library."""
        return tuple(exposition.metrics(self._read()))

    def describe(self) -> list[Metric]:
        """Return nothing, so that registering requests no values."""
        return []


class _Scrape(BaseHTTPRequestHandler):
    """The answer to a request that has been read already; `written` renders the text in a
    format."""

    def __init__(self, request: bytes, written: Callable[[str], tuple[str, bytes]]) -> None:
        self._render = written
        self.answer = io.BytesIO()
        super().__init__(io.BytesIO(request), ("", 0), None)  # type: ignore[arg-type]

    def setup(self) -> None:
        """`request` is a file instead of a socket."""
        self.rfile, self.wfile = self.request, self.answer

    def finish(self) -> None:
        """Do nothing: the caller sends the response."""

    def do_GET(self) -> None:
        """All metrics, whatever the path."""
        kind, text = self._render(self.headers.get("Accept", ""))
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


class Server:
    """Answers scrapes on `listener`."""

    def __init__(self, listener: socket.socket, read: Callable[[], Mapping[str, Any]]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(Metrics(read))
        self._texts: dict[str, bytes] = {}
        self._stale_at = float("-inf")
        self._door = Door(
            listener,
            self._serve,
            peer_address,
            Quota(
                in_all=MAX_CONNECTIONS,
                per_peer=CONNECTIONS_PER_ADDRESS,
                rate_per_peer=NEW_CONNECTIONS_PER_S,
            ),
        )

    def start(self) -> None:
        """Begin to answer; on the running loop."""
        self._door.start()

    async def _serve(self, link: socket.socket) -> None:
        await asyncio.wait_for(self._exchange(link), EXCHANGE_S)

    async def _exchange(self, link: socket.socket) -> None:
        loop, received = asyncio.get_running_loop(), b""
        while END not in received:
            data = await loop.sock_recv(link, REQUEST_BYTES)
            received += data
            if not data or len(received) > REQUEST_BYTES:
                return
        request, end, _ = received.partition(END)
        await loop.sock_sendall(link, _Scrape(request + end, self._render).answer.getvalue())

    def _render(self, accept: str) -> tuple[str, bytes]:
        """The content type that a scraper accepts, and the rendered text: rendering is the costly
        part.

        There are two formats. Versions in Accept are ignored: each would need its own text.
        """
        now = time.monotonic()
        if now >= self._stale_at:
            self._texts.clear()
            self._stale_at = now + FRESH_S
        named = {part.partition(";")[0].strip() for part in accept.split(",")}
        encode, kind = choose_encoder(OPEN_METRICS if OPEN_METRICS in named else "")
        if kind not in self._texts:
            self._texts[kind] = encode(self._registry)
        return kind, self._texts[kind]


def serve(listen: str, read: Callable[[], Mapping[str, Any]]) -> None:
    """Serve on ADDRESS:PORT as long as the running loop does; raises OSError on failure."""
    listener = listening.listen_on(listen, TCP_BACKLOG)
    listener.setblocking(False)
    Server(listener, read).start()
