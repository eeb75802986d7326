"""A TCP port, and whether another node reaches it: the listener proves that it is caovan.

The connecting side sends one word and expects another, then sends enough to fill packets of the
largest size. A client with another word is disconnected without an answer; connections, time and
bytes are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator
from secrets import compare_digest
from typing import Any, NamedTuple

from caovand.core.cluster.link import LARGE_PACKETS_LOST, MAX_TEXT
from caovand.core.problem import reason_of

CONNECT_S = 4.0
"""The time of two repeated handshakes: if a connection takes longer, something on the way drops
it."""
ANSWER_S = 8.0
MAX_ADDRESSES = 3
MAX_CLIENTS, BACKLOG = 128, 128
"""Concurrent connections; a new one replaces the oldest."""
PADDING = bytes(64 << 10)
"""More than the largest packet of any network."""
LINE_BYTES = 256
NO_LINE = (asyncio.IncompleteReadError, asyncio.LimitOverrunError)


@contextlib.asynccontextmanager
async def listening(
    host: str, port: int, asks: bytes, answers: bytes
) -> AsyncIterator[tuple[str, int]]:
    """Listen on an address of this node (port 0 takes a free one); yields address and port.

    A client that sends `asks` gets `answers` and the address it comes from. Raises OSError if this
    node cannot listen there.
    """
    clients: list[asyncio.Task[None]] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        clients[:] = [client for client in clients if not client.done()]
        if len(clients) >= MAX_CLIENTS:
            clients[0].cancel()
        client = asyncio.ensure_future(_answer(reader, writer, asks, answers))
        client.add_done_callback(lambda _: writer.close())  # including a task that never ran
        clients.append(client)

    loop = asyncio.get_running_loop()
    (family, *_, end), *_ = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        # asyncio's own bind hides the kernel's reason
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(end)
        server = await asyncio.start_server(accept, sock=bound, limit=LINE_BYTES, backlog=BACKLOG)
    except BaseException:
        bound.close()
        raise
    try:
        own = bound.getsockname()
        yield address_text(own), int(own[1])
    finally:
        server.close()
        for client in clients:
            client.cancel()
        if clients:
            await asyncio.wait(clients)


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asks: bytes, answers: bytes
) -> None:
    with contextlib.suppress(OSError, asyncio.TimeoutError, *NO_LINE):
        word = await asyncio.wait_for(reader.readuntil(), ANSWER_S)
        if compare_digest(word.rstrip(b"\n"), asks):
            seen = address_text(writer.get_extra_info("peername"))
            writer.write(answers + f" {seen}\n".encode())
            await asyncio.wait_for(reader.readexactly(len(PADDING)), ANSWER_S)
            writer.write(answers + b"\n")
            await asyncio.wait_for(writer.drain(), ANSWER_S)


class Connection(NamedTuple):
    """The outcome of a connection: `failure` is the reason why it failed, "" if it succeeded.

    `own` is its address on this side, `seen` on the other, and the handshake took `connect_s`.
    """

    failure: str = ""
    own: str = ""
    seen: str = ""
    connect_s: float = 0.0


async def connect(host: str, port: int, asks: bytes, answers: bytes) -> Connection:
    """Connect to the listener with these words, at any address of the host."""
    loop = asyncio.get_running_loop()
    try:
        resolved = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, RuntimeError) as problem:  # the last, if no thread was left
        return Connection(f"{host}: {kernel_reason(problem)}"[:MAX_TEXT])
    made = Connection(f"{host} has no address")
    for *_, end in resolved[:MAX_ADDRESSES]:
        made = await _connect(str(end[0]), port, asks, answers)
        if not made.failure:
            break
        meaning = "" if end[0] == host else f"{host} is {end[0]} there: "
        made = made._replace(failure=f"{meaning}{made.failure}"[:MAX_TEXT])
    return made


async def _connect(address: str, port: int, asks: bytes, answers: bytes) -> Connection:
    begun = time.monotonic()
    try:
        opening = asyncio.open_connection(address, port, limit=LINE_BYTES)
        reader, writer = await asyncio.wait_for(opening, CONNECT_S)
    except asyncio.TimeoutError:
        return Connection(f"no answer within {CONNECT_S:.0f} s")
    except OSError as problem:
        return Connection(kernel_reason(problem))
    connect_s = time.monotonic() - begun
    own = address_text(writer.get_extra_info("sockname"))
    try:
        failure, seen = await _prove(reader, writer, asks, answers)
    except OSError as problem:
        failure, seen = kernel_reason(problem), ""
    finally:
        writer.transport.abort()
    return Connection(failure, own, seen, 0.0 if failure else connect_s)


async def _prove(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asks: bytes, answers: bytes
) -> tuple[str, str]:
    """Prove that the other side is the listener with these words: the reason why it is not, or "",
    and our address as it sees it."""
    writer.write(asks + b"\n")
    try:
        line = await asyncio.wait_for(reader.readuntil(), ANSWER_S)
    except asyncio.TimeoutError:
        return f"no answer within {ANSWER_S:.0f} s", ""
    except asyncio.IncompleteReadError as problem:
        line = problem.partial
        if not line:
            return "the connection was closed", ""
    except asyncio.LimitOverrunError:
        line = b""
    answer, _, seen = line.rstrip(b"\n").partition(b" ")
    if not compare_digest(answer, answers):
        return "something other than caovan answers there", ""
    writer.write(PADDING)
    try:
        await asyncio.wait_for(reader.readuntil(), ANSWER_S)
    except (asyncio.TimeoutError, asyncio.IncompleteReadError):
        return LARGE_PACKETS_LOST, ""
    return "", seen.decode("ascii", "replace")[:MAX_TEXT]


def address_text(end: Any) -> str:
    """The address in a socket name, without its interface."""
    return str(end[0]).partition("%")[0]


def kernel_reason(problem: Exception) -> str:
    """The kernel's reason: asyncio's message has the address instead."""
    number = getattr(problem, "errno", None)
    if isinstance(problem, socket.gaierror) or not number:
        return reason_of(problem)
    return os.strerror(number)
