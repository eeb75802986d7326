"""Limit the resources that connections use, whoever opens them.

Each connection carries one request, whose head and body must arrive within REQUEST_S. The whole
exchange takes at most EXCHANGE_S unless its handler `streams`; such a handler is cancelled when the
reader disconnects. If all seats are taken, the server closes the oldest connection that has not
sent a complete request, or whose sender has not presented the token. So strangers cannot lock
readers out, whether they send too little or do not read.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from caovand.adapters.network.admitted import Admitted, abort

MAX_CONNECTIONS = 192
REQUEST_S = 10.0
EXCHANGE_S = 60.0
HEAD_BYTES = 16 << 10
BODY_BYTES = 512 << 10
END = b"\r\n\r\n"
ENCODED = re.compile(rb"(?i)\n(?:transfer|content)-encoding[ \t]*:")
REFUSAL = (
    b"cannot take this request: its body is chunked or compressed; send it plain, with a"
    b" Content-Length\n"
)
REFUSED = (
    b"HTTP/1.1 411 Length Required\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(REFUSAL), REFUSAL)
)
"""The response to a body without Content-Length: the library would decompress it or wait for
chunks."""
LENGTH = re.compile(rb"(?i)\ncontent-length:[ \t]*(\d+)[ \t]*\r\n")

Protocol = asyncio.Protocol
Transport = asyncio.BaseTransport


class Guard:
    """All connections; `make` creates the protocol behind each."""

    def __init__(self, make: Callable[[], Protocol], most: int = MAX_CONNECTIONS) -> None:
        self._make, self._most = make, most
        self._open: dict[Transport, asyncio.TimerHandle | None] = {}
        self._strangers: dict[Transport, None] = {}
        self._streaming: dict[Transport, asyncio.Task[object]] = {}

    def __call__(self) -> Protocol:
        """The protocol of a new connection."""
        return _Guarded(self, self._make)

    def opened(self, transport: asyncio.Transport) -> bool:
        """Admit or reject a connection."""
        if len(self._open) >= self._most:
            if not self._strangers:
                return False
            oldest = next(iter(self._strangers))
            self.closed(oldest)
            abort(oldest)
        self._open[transport] = self._limit(transport, REQUEST_S)
        self._strangers[transport] = None
        return True

    def closed(self, transport: Transport) -> None:
        """A connection has closed."""
        self._strangers.pop(transport, None)
        if task := self._streaming.pop(transport, None):
            task.cancel()
        timer = self._open.pop(transport, None)
        if timer is not None:
            timer.cancel()

    def asked(self, transport: Transport | None, *, known: bool) -> None:
        """A complete request has arrived; `known` says whether its sender may read the page."""
        self._again(transport, EXCHANGE_S)
        if known and transport is not None:
            self._strangers.pop(transport, None)

    def streams(self, transport: Transport | None) -> None:
        """The calling handler limits the rest of the exchange itself."""
        self._again(transport, None)
        task = asyncio.current_task()
        if transport in self._open and task is not None:
            self._streaming[transport] = task
            task.add_done_callback(lambda _: self._streaming.pop(transport, None))

    def _again(self, transport: Transport | None, limit_s: float | None) -> None:
        if transport is None or transport not in self._open:
            return  # closed in the meantime
        timer = self._open[transport]
        if timer is not None:
            timer.cancel()
        self._open[transport] = None if limit_s is None else self._limit(transport, limit_s)

    @staticmethod
    def _limit(transport: Transport, limit_s: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(limit_s, abort, transport)


class _Guarded(Admitted):
    """Passes one request to the inner protocol, if the guard admits the connection.

    Further requests are dropped: the library would parse any number in advance.
    """

    def __init__(self, guard: Guard, make: Callable[[], Protocol]) -> None:
        super().__init__(make)
        self._guard = guard
        self._head = b""
        self._body_left: int | None = None  # before the head is complete

    def admit(self, transport: asyncio.Transport) -> bool:
        return self._guard.opened(transport)

    def on_lost(self, transport: asyncio.Transport) -> None:
        self._guard.closed(transport)

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        if self._body_left is None:
            got = self._head + data
            head, end, data = got.partition(END)
            if len(head) > HEAD_BYTES or _length(head) > BODY_BYTES:
                self._transport.abort()
                return
            if not end:
                self._head = got
                return
            if ENCODED.search(head):
                self._transport.write(REFUSED)
                self._transport.close()
                self._body_left = 0
                return
            self._head, self._body_left = b"", _length(head)
            self._inside.data_received(head + end)
        data = data[: self._body_left]
        self._body_left -= len(data)
        if data:
            self._inside.data_received(data)


def _length(head: bytes) -> int:
    """The announced size of the body."""
    match = LENGTH.search(head + b"\r\n")
    return int(match[1]) if match else 0
