"""Follows the handshake of CURVE: until it is done, whoever connected is a stranger.

All that comes after it is encrypted. Until then the commands have names (rfc.zeromq.org/spec/25),
and the server says READY to nobody whose key it does not take.
"""

from __future__ import annotations

from collections.abc import Callable

from caovand.adapters.admission.zmtp import COMMAND, GREETING_BYTES, LONG, Excessive

READY = b"\x05READY"
MOST_BYTES = 2048  # of a handshake, either way


class Handshake:
    """One client's: `done` is called once the server has said READY.

    `feed` raises Excessive where the client sends more before that than a handshake has.
    """

    def __init__(self, done: Callable[[], None]) -> None:
        self._done = done
        self._came = 0
        self._answer = bytearray()
        self.asks = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the client."""
        if not self.asks:
            self._came += len(data)
            if self._came > MOST_BYTES:
                raise Excessive("a handshake is too large")

    def answered(self, data: bytes) -> None:
        """Take the next bytes of the server."""
        if self.asks or len(self._answer) > MOST_BYTES:
            return
        self._answer += data
        if any(command.startswith(READY) for command in commands(bytes(self._answer))):
            self.asks = True
            self._answer.clear()
            self._done()


def commands(data: bytes) -> list[bytes]:
    """The whole commands after the greeting."""
    found, at = [], GREETING_BYTES
    while len(data) > at + 1 and data[at] & COMMAND:
        size_bytes = 8 if data[at] & LONG else 1
        begin = at + 1 + size_bytes
        at = begin + int.from_bytes(data[at + 1 : begin], "big")
        if len(data) < at:
            break
        found.append(data[begin:at])
    return found
