"""Count what a ZMTP client sends: whole messages of bounded size, and no endless ones.

libzmq keeps every part of a message until the last one arrives, and every subscription. libzmq
counts a command flagged MORE as a part, although ZMTP 3 (rfc.zeromq.org/spec/23), which it speaks
since 4.0, has no such command.
"""

from __future__ import annotations

GREETING_BYTES = 64
GREETS = 0xFF  # the first byte of every greeting, and of no JSON
MORE, LONG, COMMAND = 1, 2, 4
FLAGS = frozenset({0, MORE, LONG, MORE | LONG, COMMAND, COMMAND | LONG})
MAX_PARTS = 64  # empty ones cost libzmq memory, too
COMMAND_BYTES = 1024


class LimitExceeded(Exception):
    """The client sent more than any honest client needs to."""


class Messages:
    """Follows one client's bytes: `feed` raises LimitExceeded if a limit is passed.

    `max_bytes` limits one message with all its parts and the commands between them. `asks`: the
    client has sent a whole message, or a command after READY, such as a subscription.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._head = bytearray()
        self._wanted = GREETING_BYTES  # outstanding bytes of the greeting, or of a frame's header
        self._greeted = False
        self._body = 0  # outstanding bytes of a frame's body
        self._flags = 0
        self._parts = self._bytes = self._frames = 0
        self._amid = False  # some parts of a message have arrived, but not the last
        self.asks = False

    def feed(self, data: bytes) -> None:
        """Feed the next bytes."""
        at = 0
        while at < len(data):
            if self._body:
                taken = min(self._body, len(data) - at)
                self._body -= taken
                at += taken
                if not self._body:
                    self._end_frame()
                continue
            taken = min(self._wanted - len(self._head), len(data) - at)
            self._head += data[at : at + taken]
            at += taken
            if len(self._head) == self._wanted:
                self._read_head()

    def answered(self, data: bytes) -> None:
        """Ignore bytes to the client: they are not counted."""

    def _read_head(self) -> None:
        head = bytes(self._head)
        if not self._greeted:
            if head[0] != GREETS or head[9] != 0x7F or head[10] < 3:
                raise LimitExceeded("it does not use ZMTP 3")
            self._greeted = True
        elif len(head) == 1:
            self._flags = head[0]
            if self._flags not in FLAGS:
                raise LimitExceeded(f"it sent a frame with the invalid flags {self._flags}")
            self._wanted = 9 if self._flags & LONG else 2
            return
        else:
            self._begin_frame(int.from_bytes(head[1:], "big"))
        self._head.clear()
        self._wanted = 1

    def _begin_frame(self, size: int) -> None:
        if self._flags & COMMAND and size > COMMAND_BYTES:
            raise LimitExceeded("a command is too large")
        self._bytes += size
        self._parts += 1
        if self._bytes > self._max_bytes or self._parts > MAX_PARTS:
            raise LimitExceeded("a message is too large")
        self._body = size
        if not size:
            self._end_frame()

    def _end_frame(self) -> None:
        self._frames += 1
        command = bool(self._flags & COMMAND)
        self._amid = self._amid if command else bool(self._flags & MORE)
        if not self._amid:
            self._parts = self._bytes = 0
        self.asks = self.asks or (self._frames > 1 if command else not self._amid)
