"""Pass bytes between clients and a ZeroMQ socket, for a bounded number of clients.

libzmq accepts every connection, and aborts the process when descriptors run out. So it listens in a
private folder, and its clients come through a door, which counts their bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from caovand.adapters.admission.door import CannotBind
from caovand.adapters.admission.zmtp import GREETS, LimitExceeded

FIRST_MESSAGE_S = 5.0
CHUNK = 64 * 1024
DESCRIPTORS_PER_CONNECTION = 2  # the connection to libzmq, and libzmq's end of it
INNER = "inner"


class Follower(Protocol):
    """Follows the bytes that one client sends and receives."""

    @property
    def asks(self) -> bool:
        """Whether the client has progressed far enough to stay."""
        ...

    def feed(self, data: bytes) -> None:
        """Feed the client's next bytes; raises LimitExceeded."""
        ...

    def answered(self, data: bytes) -> None:
        """Feed the next bytes for the client."""
        ...


async def relay(
    peer: socket.socket,
    inside: socket.socket,
    follower: Follower,
    first: bytes = b"",
    in_all: int | None = None,
) -> None:
    """Pass bytes until either side ends, or the peer requests nothing or too much.

    `first` was already read from the peer; `in_all` limits the total that it may send.
    """
    loop = asyncio.get_running_loop()

    async def inward() -> None:
        sent, data = 0, first or await loop.sock_recv(peer, CHUNK)
        while data:
            sent += len(data)
            follower.feed(data)
            if in_all is not None and sent > in_all:
                return
            await loop.sock_sendall(inside, data)
            data = await loop.sock_recv(peer, CHUNK)

    async def outward() -> None:
        while data := await loop.sock_recv(inside, CHUNK):
            follower.answered(data)
            await loop.sock_sendall(peer, data)

    ways = [asyncio.ensure_future(way) for way in (inward(), outward())]
    try:
        await asyncio.wait(ways, timeout=FIRST_MESSAGE_S, return_when=asyncio.FIRST_COMPLETED)
        if follower.asks:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        for end in await asyncio.gather(*ways, return_exceptions=True):
            if isinstance(end, Exception) and not isinstance(end, (OSError, LimitExceeded)):
                raise end


class Gate:
    """Serves connections of a Door for the ZeroMQ socket at `inner`.

    `follow` creates the follower of a connection from its socket to libzmq, which has a unique
    name. A client may send `in_all` bytes in total, None for any number. A client without a ZeroMQ
    greeting goes to `others`, with the bytes read so far.
    """

    def __init__(
        self,
        inner: Path,
        follow: Callable[[socket.socket], Follower],
        in_all: int | None = None,
        others: Callable[[socket.socket, bytes], Awaitable[None]] | None = None,
    ) -> None:
        self._inner, self._follow, self._in_all = str(inner), follow, in_all
        self._others = others

    async def serve(self, link: socket.socket) -> None:
        """Relay a connection that begins with a ZeroMQ greeting."""
        loop = asyncio.get_running_loop()
        # A client that only checks whether the port is open costs no connection inside.
        first = await asyncio.wait_for(loop.sock_recv(link, CHUNK), FIRST_MESSAGE_S)
        if not first:
            return
        if self._others is not None and first[0] != GREETS:
            await self._others(link, first)
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as inside:
            inside.bind("")  # the kernel chooses a name
            await loop.sock_connect(inside, self._inner)
            await relay(link, inside, self._follow(inside), first, self._in_all)


def inner_folder(folder: Path) -> Path:
    """The folder in which libzmq listens, closed to everybody else."""
    inner = folder / INNER
    try:
        with contextlib.suppress(FileExistsError):
            inner.mkdir(mode=0o700)
        seen = inner.lstat()
        if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.geteuid():
            fact = "another user owns it, or it is not a directory"
            raise CannotBind(f"cannot use {inner}: {fact}; delete it")
        inner.chmod(0o700)
    except OSError as problem:
        raise CannotBind(f"cannot use {inner}: {problem.strerror}") from problem
    return inner
