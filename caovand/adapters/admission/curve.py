"""Follow a CURVE connection: its handshake, and the bytes since its last whole message.

Everything after the handshake is encrypted. During the handshake commands have names
(rfc.zeromq.org/spec/25), and the server sends READY only to a client whose key it accepts.
Afterwards only the recipient knows which part of a message is the last, and libzmq keeps all parts
until that one arrives. So `heard` reports each received message: the bytes since the previous one
are bounded, and with them the parts, each of which has at least PART_BYTES.
"""

from __future__ import annotations

from collections.abc import Callable

from caovand.adapters.admission.zmtp import COMMAND, GREETING_BYTES, LONG, LimitExceeded

READY = b"\x05READY"
MAX_BYTES = 2048  # of a handshake, in each direction
PART_BYTES = 35


class Encrypted:
    """One connection, whose peer is the client, or the server if `to_server`.

    `done` is called once the server has sent READY. `feed` raises LimitExceeded if the peer sends
    more than a handshake before that, or more than `max_unheard` bytes between two messages
    afterwards.
    """

    def __init__(
        self,
        max_unheard: int,
        done: Callable[[], None] = lambda: None,
        *,
        to_server: bool = False,
    ) -> None:
        self._max_unheard, self._done, self._to_server = max_unheard, done, to_server
        self._came = self._unheard = 0
        self._answer = bytearray()
        self.asks = False

    def feed(self, data: bytes) -> None:
        """Feed the next bytes from the peer."""
        if self.asks:
            self._unheard += len(data)
            if self._unheard > self._max_unheard:
                raise LimitExceeded("a message is too large")
            return
        self._came += len(data)
        if self._to_server:
            self._follow(data)
        if not self.asks and self._came > MAX_BYTES:
            raise LimitExceeded("a handshake is too large")

    def answered(self, data: bytes) -> None:
        """Feed the next bytes to the peer."""
        if not self._to_server:
            self._follow(data)

    def heard(self) -> None:
        """Record that a whole message of the peer was received."""
        self._unheard = 0

    def _follow(self, data: bytes) -> None:
        """Take the next bytes of the server."""
        if self.asks or len(self._answer) > MAX_BYTES:
            return
        self._answer += data
        if any(command.startswith(READY) for command in commands(bytes(self._answer))):
            self.asks = True
            self._answer.clear()
            self._done()


def commands(data: bytes) -> list[bytes]:
    """The complete commands after the greeting."""
    found, at = [], GREETING_BYTES
    while len(data) > at + 1 and data[at] & COMMAND:
        size_bytes = 8 if data[at] & LONG else 1
        begin = at + 1 + size_bytes
        at = begin + int.from_bytes(data[at + 1 : begin], "big")
        if len(data) < at:
            break
        found.append(data[begin:at])
    return found
