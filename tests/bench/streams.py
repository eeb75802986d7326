"""An engine that streams events at a fixed pace, each with the time at which it was sent."""

from __future__ import annotations

import asyncio
import re
import time

from tests.gateway.world import CHAT

PACE_S = 0.02
AT = re.compile(rb'"content":"(\d+\.\d+) ')
_EVENT = (
    b'data: {"id": "chat-1", "object": "chat.completion.chunk", "created": 1, "model": "tiny",'
    b' "choices": [{"index": 0, "delta": {"content":"%.6f "}, "finish_reason": null}]}\n\n'
)
_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    b"Connection: keep-alive\r\n\r\n"
)
_LAST = b"data: [DONE]\n\n"
_END = b"%x\r\n%s\r\n0\r\n\r\n" % (len(_LAST), _LAST)
_EVENTS = re.compile(rb'"max_tokens": ?(\d+)')


class Engine(asyncio.Protocol):
    """Streams as many events as a body's `max_tokens` says, one without it, the first at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._got = transport, b""

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, end, body = self._got.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        if end and len(body) >= length:
            self._got = b""
            self.asked(head)
            events = _EVENTS.search(body)
            self._next(_HEAD, int(events[1]) if events else 1, asyncio.get_running_loop().time())

    def asked(self, head: bytes) -> None:
        """Called with the head of each request."""

    def _next(self, before: bytes, left: int, due: float) -> None:
        """Send an event that is `due`, and each later one PACE_S after the one before was due: were
        it after it was sent, streams that are sent together once would stay together."""
        if self._transport.is_closing():
            return
        self._transport.write(before + event())
        loop, due = asyncio.get_running_loop(), due + PACE_S
        if left > 1:
            loop.call_at(due, self._next, b"", left - 1, due)
        else:
            loop.call_at(due, self._transport.write, _END)


def event() -> bytes:
    """A chunk of an answer: an event with the time."""
    text = _EVENT % time.monotonic()
    return b"%x\r\n%s\r\n" % (len(text), text)


async def serve(port: int, protocol: type[Engine] = Engine) -> None:
    """Be the engine."""
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", port)
    await server.serve_forever()


def request(body: bytes) -> bytes:
    """A request for a chat."""
    lines = (b"POST %s HTTP/1.1" % CHAT.encode(), b"Host: x", b"Content-Type: application/json",
             b"Content-Length: %d" % len(body))  # fmt: skip
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
