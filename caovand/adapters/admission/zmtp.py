"""Counts what a client of ZMTP sends: whole messages of a bounded size, and nothing without end.

libzmq keeps every part of a message until the last one has come, and every subscription. A command
that claims to have MORE counts as a part there, although ZMTP 3 (rfc.zeromq.org/spec/23), which
libzmq speaks since 4.0, knows no such command.
"""

from __future__ import annotations

GREETING_BYTES = 64
GREETS = 0xFF  # the first byte of every greeting, and of no JSON
MORE, LONG, COMMAND = 1, 2, 4
FLAGS = frozenset({0, MORE, LONG, MORE | LONG, COMMAND, COMMAND | LONG})
MAX_PARTS = 64  # empty ones cost libzmq memory, too
COMMAND_BYTES = 1024


class LimitExceeded(Exception):
    """The client sent more than anybody needs to."""


class Messages:
    """Follows one client's bytes: `feed` raises Excessive if a limit is passed.

    `most_bytes` is the limit of one message with all its parts and the commands between them.
    `asks`: it has sent a whole one, or a command after READY, such as a subscription.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._head = bytearray()
        self._wanted = GREETING_BYTES  # bytes of the greeting, or of a frame's head, to come
        self._greeted = False
        self._body = 0  # bytes of a frame's body to come
        self._flags = 0
        self._parts = self._bytes = self._frames = 0
        self._amid = False  # some parts of a message have arrived, but not the last
        self.asks = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
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
        """Nothing that it gets is counted."""

    def _read_head(self) -> None:
        head = bytes(self._head)
        if not self._greeted:
            if head[0] != GREETS or head[9] != 0x7F or head[10] < 3:
                raise LimitExceeded("it does not speak ZMTP 3")
            self._greeted = True
        elif len(head) == 1:
            self._flags = head[0]
            if self._flags not in FLAGS:
                raise LimitExceeded(f"no frame has the flags {self._flags}")
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
        if self._bytes > self._most_bytes or self._parts > MAX_PARTS:
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
