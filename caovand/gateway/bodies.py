"""Read the fields of bodies in pieces, a few per turn of the event loop.

Bodies with millions of brackets, however many arrive at once, do not block other requests.
"""

from __future__ import annotations

import asyncio

from caovand.core.gateway.body import Fields, fields
from caovand.gateway.connections import InTurns

PIECES_AT_ONCE = 4
"""Further pieces read before others have their turn: about a millisecond."""


class BodyReader:
    """Reads all bodies of the gateway."""

    def __init__(self) -> None:
        self._pieces = InTurns(_go_on, PIECES_AT_ONCE)

    async def read(self, body: bytes) -> Fields:
        """The fields of a body."""
        for result in fields(body):
            if result is not None:
                return result
            turn = asyncio.get_running_loop().create_future()
            self._pieces.add(turn)
            await turn
        raise AssertionError


def _go_on(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # its client may have disconnected
        turn.set_result(None)
