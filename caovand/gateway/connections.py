"""Limit the resources of connections, and notice at once when a client disconnects.

A request's header must arrive within `head_s`. Data that follows a request while it is answered is
kept up to AHEAD_BYTES, since the library would parse any number of requests ahead. If all seats are
taken, the connection that has waited longest without a request is closed. If many clients send
requests at once, or disconnect, these are begun or cancelled a few at a time, between those of
others.
"""

from __future__ import annotations

import asyncio
import resource
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from caovand.adapters.network.admitted import Admitted, abort
from caovand.core.gateway.last_words import NOTHING
from caovand.core.gateway.requests import ConnectionLimits
from caovand.gateway.survivor import Marks

IDLE_S = 75.0
AHEAD_BYTES = 64 << 10
SPARE_DESCRIPTORS = 32  # descriptors for everything else
BEGUN_AT_ONCE = 16
"""Requests begun before others have their turn."""
CANCELLED_AT_ONCE = 16
"""Requests cancelled before others have their turn: about a millisecond."""

Protocol = asyncio.Protocol
Transport = asyncio.BaseTransport
T = TypeVar("T")


class InTurns(Generic[T]):
    """Do `work` for each item in order, for at most `at_once` in a turn of the event loop."""

    def __init__(self, work: Callable[[T], object], at_once: int) -> None:
        self._work, self._at_once = work, at_once
        self._left = at_once  # in this turn
        self._items: deque[T] = deque()
        self._due = False

    def add(self, item: T) -> None:
        """Do the work for this item after all earlier items: at once if this turn allows it, which
        saves a turn per request.
        """
        self._schedule()
        if self._items or not self._left:
            self._items.append(item)
        else:
            self._left -= 1
            self._work(item)

    def _schedule(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._due, self._left = False, self._at_once
        if self._items:
            self._schedule()  # even if the work raises an error, which affects only that item
        while self._items and self._left:
            self._left -= 1
            self._work(self._items.popleft())


class Connections:
    """All connections; `limits` returns the current limits. `marks` holds, for each connection, the
    bytes that its client gets if this process dies.
    """

    def __init__(self, limits: Callable[[], ConnectionLimits], marks: Marks) -> None:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Each may need another connection, to the engine.
        self._seats = descriptors // 2 - SPARE_DESCRIPTORS
        self._limits, self.marks = limits, marks
        self._open: dict[Transport, _Connection] = {}
        self._idle: dict[Transport, asyncio.TimerHandle] = {}
        self._abandoning = InTurns(_Connection.abandon, CANCELLED_AT_ONCE)
        self._beginning = InTurns(_Connection.begin, BEGUN_AT_ONCE)

    def connection(self, make: Callable[[], Protocol]) -> Protocol:
        """The protocol of a new connection, in front of the one that `make` creates."""
        return _Connection(self, make)

    def opened(self, transport: asyncio.Transport, connection: _Connection) -> bool:
        """Admit or reject a connection."""
        limits = self._limits()
        if len(self._open) >= min(limits.max_connections, self._seats):
            if not self._idle:
                return False
            oldest = next(iter(self._idle))
            self.closed(oldest)
            abort(oldest)
        self._open[transport] = connection
        self._wait(transport, limits.head_s)
        return True

    def closed(self, transport: Transport) -> None:
        """Remove a closed connection."""
        if timer := self._idle.pop(transport, None):
            timer.cancel()
        self._open.pop(transport, None)

    def asked(self, transport: Transport) -> None:
        """Record that a request's header is complete: this task serves it, and is cancelled when
        the client disconnects."""
        if connection := self._open.get(transport):
            if timer := self._idle.pop(transport, None):
                timer.cancel()
            connection.task = asyncio.current_task()

    def complete(self, transport: Transport | None) -> Callable[[int], None]:
        """Record that the request's body is complete; returns what sets the connection's mark."""
        if connection := self._open.get(transport) if transport else None:
            connection.busy = True
            return connection.mark
        return lambda mark: None  # it is closed

    def answered(self, transport: Transport | None) -> None:
        """Record that the request is answered."""
        if transport and (connection := self._open.get(transport)):
            connection.mark(NOTHING)
            self._wait(transport, IDLE_S)
            connection.next()

    def sent(self, connection: _Connection) -> None:
        """Let a connection begin the request whose data has arrived, after those before it."""
        self._beginning.add(connection)

    def lost(self, connection: _Connection) -> None:
        """Cancel the request of a client that has disconnected, after those that did before."""
        self._abandoning.add(connection)

    def _wait(self, transport: Transport, limit_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._idle[transport] = loop.call_later(limit_s, abort, transport)


class _Connection(Admitted):
    def __init__(self, connections: Connections, make: Callable[[], Protocol]) -> None:
        super().__init__(make)
        self._connections = connections
        self._unread, self._ahead = b"", b""
        self.task: asyncio.Task[object] | None = None
        self._descriptor = -1  # before and after
        self.busy = False
        self._lost_by: Exception | None = None

    def mark(self, mark: int) -> None:
        """Set the bytes that the client gets if this process dies from now on."""
        if self._descriptor >= 0:
            self._connections.marks.set(self._descriptor, mark)

    def begin(self) -> None:
        """Process the data that a request begins with."""
        data, self._unread = self._unread, b""
        if self._transport is not None:
            self._transport.resume_reading()
            self._take(data)

    def next(self) -> None:
        """Process data that arrived while the previous request was answered."""
        self.task, self.busy, ahead = None, False, self._ahead
        self._ahead = b""
        if ahead:
            # The library parses it once the previous request is done.
            asyncio.get_running_loop().call_soon(self.data_received, ahead)

    def admit(self, transport: asyncio.Transport) -> bool:
        if not self._connections.opened(transport, self):
            return False
        if (link := transport.get_extra_info("socket")) is not None:
            self._descriptor = link.fileno()
        return True

    def on_lost(self, transport: asyncio.Transport) -> None:
        self._connections.closed(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.mark(NOTHING)
        self._descriptor = -1  # another connection's soon
        if self.task is None:
            super().connection_lost(exc)
        else:
            self._lost_by = exc
            self._connections.lost(self)

    def abandon(self) -> None:
        """Tell the library that the client has disconnected, and cancel the request, which aiohttp
        3.8 does on its own but later releases do not.
        """
        task = self.task
        super().connection_lost(self._lost_by)
        if task is not None:
            task.cancel()

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        if self.task is not None and not self._unread:
            self._take(data)
            return
        waits, self._unread = bool(self._unread), self._unread + data
        if not waits:
            self._connections.sent(self)
            if self._unread and self._transport is not None:
                self._transport.pause_reading()  # until its turn

    def _take(self, data: bytes) -> None:
        if not self.busy:
            self._inside.data_received(data)
            return
        self._ahead += data
        if len(self._ahead) > AHEAD_BYTES:
            assert self._transport is not None
            self._transport.abort()
