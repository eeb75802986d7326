"""A connection between two nodes that is tried for a moment: who is let in, and how fast it is.

The side that listens lets in one connection, which sends the right word, and answers with another;
anybody else is closed without an answer. All of it is bounded: connections, time and bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from secrets import compare_digest
from typing import Any, TypeVar

CONNECT_S = 4.0
"""Two repeated handshakes: what takes longer is dropped on the way."""
ANSWER_S = 10.0
MAX_ADDRESSES = 3
MAX_GUESTS, BACKLOG = 32, 128
"""Connections whose word is awaited at the same time, with one awaited; a new one takes the place
of the oldest."""
PAUSE_S = 0.1
TRANSFER_S, MAX_BYTES = 1.0, 256 << 20
FIRST_S = 8.0
"""How long nothing may come before a transfer counts as lost."""
PIECE_BYTES = 1 << 20
Found = TypeVar("Found")


class Failed(Exception):
    """Why a connection failed, in words."""


class Door:
    """Listens on an address of ours, at a free port without one; OSError where that cannot be."""

    def __init__(self, host: str, port: int = 0) -> None:
        family, _, _, _, end = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.setblocking(False)
            self._listener.bind(end)
            self._listener.listen(BACKLOG)
            bound = self._listener.getsockname()
            self.address, self.port = plain(bound), int(bound[1])
            self._paused: asyncio.TimerHandle | None = None
            self._awaited: dict[bytes, tuple[bytes, asyncio.Future[tuple[socket.socket, str]]]]
            self._awaited = {}
            self._guests: list[asyncio.Task[None]] = []
        except OSError:
            self._listener.close()
            raise

    async def admit(self, asks: bytes, answers: bytes) -> tuple[socket.socket, str]:
        """The connection that sends `asks`, and the address it comes from; waits for ever.

        Several may be awaited at the same time.
        """
        admitted: asyncio.Future[tuple[socket.socket, str]]
        admitted = asyncio.get_running_loop().create_future()
        if not self._awaited:
            self._listen()
        self._awaited[asks] = answers, admitted
        try:
            return await admitted
        finally:
            del self._awaited[asks]
            if not self._awaited:
                self._rest()
                guests, self._guests = self._guests, []
                for guest in guests:
                    guest.cancel()
                if guests:
                    await asyncio.wait(guests)

    async def _check(self, link: socket.socket, seen: str) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(link)
            with contextlib.suppress(Failed):
                admitted = await _within(ANSWER_S, _let_in(link, self._awaited))
                if not admitted.done():
                    stack.pop_all()
                    admitted.set_result((link, seen))

    def _come(self, link: socket.socket, seen: str) -> None:
        guests = [one for one in self._guests if not one.done()]
        most = MAX_GUESTS - 1 + len(self._awaited)
        for oldest in guests[: max(len(guests) - most + 1, 0)]:
            oldest.cancel()
        self._guests = [*guests, asyncio.ensure_future(self._check(link, seen))]

    # Not the loop's own sock_accept: who comes while that is cancelled is a fault in the log.
    def _listen(self) -> None:
        loop = asyncio.get_running_loop()

        def accept() -> None:
            try:
                link, end = self._listener.accept()
            except OSError:  # it is gone already, or there are no descriptors for the moment
                self._rest()
                self._paused = loop.call_later(PAUSE_S, self._listen)
                return
            link.setblocking(False)
            self._come(link, plain(end))

        loop.add_reader(self._listener, accept)

    def _rest(self) -> None:
        if self._listener.fileno() != -1:
            asyncio.get_running_loop().remove_reader(self._listener)
        if self._paused is not None:
            self._paused.cancel()

    def close(self) -> None:
        """Stop to listen."""
        if self._awaited:
            self._rest()
        self._listener.close()


async def connect(host: str, port: int, asks: bytes, answers: bytes) -> tuple[socket.socket, float]:
    """A connection to whoever answers to the word, and the seconds it took. Raises Failed."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, RuntimeError) as problem:  # the last for want of a thread
        raise Failed(f"{host}: {getattr(problem, 'strerror', None) or problem}") from None
    failure = Failed(f"{host} has no address")
    for family, kind, _, _, end in found[:MAX_ADDRESSES]:
        try:
            return await _connected(socket.socket(family, kind), end, asks, answers)
        except (Failed, OSError) as problem:
            meaning = "" if end[0] == host else f"{host} is {end[0]} there: "
            failure = Failed(f"{meaning}{getattr(problem, 'strerror', None) or problem}")
    raise failure


async def _connected(
    link: socket.socket, end: Any, asks: bytes, answers: bytes
) -> tuple[socket.socket, float]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(link)
        link.setblocking(False)
        begun = time.monotonic()
        await _within(CONNECT_S, asyncio.get_running_loop().sock_connect(link, end))
        took_s = time.monotonic() - begun
        await _within(ANSWER_S, _ask(link, asks, answers))
        stack.pop_all()
        return link, took_s


async def send(link: socket.socket) -> None:
    """Send for a moment. Closes the connection; Failed."""
    await _moved(link, _send)


async def receive(link: socket.socket) -> float:
    """The bytes/s that come within a moment, 0 if nothing does. Closes the connection; Failed."""
    return await _moved(link, _receive)


async def _moved(link: socket.socket, move: Callable[[socket.socket], Found]) -> Found:
    """Move data in a thread of its own, which a fast link keeps busy, and return the result."""
    moving = asyncio.ensure_future(asyncio.to_thread(move, link))
    moving.add_done_callback(lambda _: link.close())  # not before: its number may be another's then
    try:
        return await asyncio.shield(moving)
    except RuntimeError as problem:  # no thread
        raise Failed(str(problem)) from None
    finally:
        with contextlib.suppress(OSError):  # it ends a thread that nobody waits for any more
            link.shutdown(socket.SHUT_RDWR)


def plain(end: Any) -> str:
    """The address in a socket's name, without its interface."""
    return str(end[0]).partition("%")[0]


async def _within(seconds: float, work: Awaitable[Found]) -> Found:
    """The result of network work that may take so long. Raises Failed."""
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError:
        raise Failed(f"no answer within {seconds:.0f} s") from None
    except OSError as problem:
        # asyncio writes the address in the place of the reason.
        raise Failed(os.strerror(problem.errno) if problem.errno else str(problem)) from None


async def _let_in(link: socket.socket, awaited: Mapping[bytes, tuple[bytes, Found]]) -> Found:
    """Answer to the word that it sends, which is one of those `awaited`. Raises Failed."""
    word = await _exactly(link, max(map(len, awaited), default=0))
    for asks, (answers, found) in awaited.items():
        if compare_digest(word, asks):
            await asyncio.get_running_loop().sock_sendall(link, answers)
            return found
    raise Failed("another word")


async def _ask(link: socket.socket, asks: bytes, answers: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(link, asks)
    got = await _exactly(link, len(answers))
    if not compare_digest(got, answers):
        end = "something else than caovan answers there" if got else "the connection was closed"
        raise Failed(end)


async def _exactly(link: socket.socket, count: int) -> bytes:
    """The first `count` bytes; fewer from a connection that ends before."""
    got = b""
    while len(got) < count:
        data = await asyncio.get_running_loop().sock_recv(link, count - len(got))
        if not data:
            break
        got += data
    return got


def _send(link: socket.socket) -> None:
    piece, sent = memoryview(os.urandom(PIECE_BYTES)), 0
    until = time.monotonic() + TRANSFER_S
    with contextlib.suppress(OSError):  # the other side has enough, or takes nothing
        while sent < MAX_BYTES and (left_s := until - time.monotonic()) > 0:
            link.settimeout(left_s)
            sent += link.send(piece)
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_WR)


def _receive(link: socket.socket) -> float:
    buffer = bytearray(PIECE_BYTES)
    first = count = 0
    begun = latest = 0.0
    left_s = FIRST_S
    with contextlib.suppress(OSError):
        while left_s > 0:
            link.settimeout(left_s)
            got = link.recv_into(buffer)
            if not got:
                break
            latest = time.monotonic()
            if not begun:  # the time of the first piece is not known
                begun, first = latest, got
            else:
                count += got
            left_s = begun + TRANSFER_S - latest
    return count / (latest - begun) if count else first / TRANSFER_S
