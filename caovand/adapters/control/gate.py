"""Passes bytes between a client and a ZeroMQ socket, for a bounded number of clients.

libzmq accepts whoever connects, and aborts the process when descriptors run out. So it listens in
a folder of ours, and its clients come through a door, their bytes counted.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from caovand.adapters.control.zmtp import Excessive, Messages

FIRST_MESSAGE_S = 5.0
CHUNK = 64 * 1024


class Gate:
    """Serves connections of a Door for the ZeroMQ socket at `inner`.

    A message has `most_bytes` at most, all that a client ever sends `in_all` (None: no limit).
    """

    def __init__(self, inner: Path, most_bytes: int, in_all: int | None = None) -> None:
        self._inner, self._most_bytes, self._in_all = str(inner), most_bytes, in_all

    async def serve(self, link: socket.socket) -> None:
        """Pass bytes until either side ends, or the client asks for nothing or for too much."""
        loop = asyncio.get_running_loop()
        # A client that only looks whether somebody listens costs no connection inside.
        first = await asyncio.wait_for(loop.sock_recv(link, CHUNK), FIRST_MESSAGE_S)
        if not first:
            return
        messages = Messages(self._most_bytes)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as inside:
            await loop.sock_connect(inside, self._inner)

            async def inward(data: bytes) -> None:
                sent = 0
                while data:
                    sent += len(data)
                    messages.feed(data)
                    if self._in_all is not None and sent > self._in_all:
                        return
                    await loop.sock_sendall(inside, data)
                    data = await loop.sock_recv(link, CHUNK)

            async def outward() -> None:
                while data := await loop.sock_recv(inside, CHUNK):
                    await loop.sock_sendall(link, data)

            ways = [asyncio.ensure_future(way) for way in (inward(first), outward())]
            try:
                await asyncio.wait(
                    ways, timeout=FIRST_MESSAGE_S, return_when=asyncio.FIRST_COMPLETED
                )
                if messages.asks:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                for end in await asyncio.gather(*ways, return_exceptions=True):
                    if isinstance(end, Exception) and not isinstance(end, (OSError, Excessive)):
                        raise end
