"""Passes bytes between a client and a ZeroMQ socket, for a bounded number of clients.

libzmq accepts whoever connects, aborts the process when descriptors run out, and keeps every part
of an unfinished message. So it listens in a folder of ours, and its clients come through a door.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from caovand.core import wire

FIRST_BYTES_S = 5.0
CHUNK = 64 * 1024
# What a client may send without a byte coming back: a few requests of the largest size.
MOST_UNANSWERED = 4 * wire.MAX_BYTES


class Gate:
    """Serves connections of a Door for the ZeroMQ socket at `inner`."""

    def __init__(self, inner: Path) -> None:
        self._inner = str(inner)

    async def serve(self, link: socket.socket) -> None:
        """Pass bytes until either side ends."""
        loop = asyncio.get_running_loop()
        # A client that only looks whether somebody listens costs no connection inside.
        first = await asyncio.wait_for(loop.sock_recv(link, CHUNK), FIRST_BYTES_S)
        if not first:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as inside:
            await loop.sock_connect(inside, self._inner)
            unanswered = 0

            async def inward(data: bytes) -> None:
                nonlocal unanswered
                while data and unanswered <= MOST_UNANSWERED:
                    unanswered += len(data)
                    await loop.sock_sendall(inside, data)
                    data = await loop.sock_recv(link, CHUNK)

            async def outward() -> None:
                nonlocal unanswered
                while data := await loop.sock_recv(inside, CHUNK):
                    unanswered = 0
                    await loop.sock_sendall(link, data)

            ways = [asyncio.ensure_future(way) for way in (inward(first), outward())]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
