"""The protocol of short requests: one line of JSON in, one line out, then the connection ends.

The frames are those of `core.wire`, with a newline. Nothing about a client is kept after its
connection, and no step of a request may take long.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace

from caovand.core.reporting import wire
from caovand.core.reporting.wire import Reply, Request, WireError

GATEWAY_REQUESTS = frozenset({"gateway", "gateway_report", "gateway_requests", "gateway_used"})
SERVER_REQUESTS = GATEWAY_REQUESTS | {"endpoint"}
"""Operations whose results contain the API key, which not even the control group may see."""
PAGE_REQUESTS = frozenset({
    "endpoint",
    "status", "version", "recent", "plan", "events", "logs", "incidents", "incident", "history",
    "cluster", "requests",
})  # fmt: skip
MAX_LINE = 4096
READ_S = 2.0
WRITE_S = 2.0
LOOK_S = 0.5  # delay until a request ends whose client is gone
BUSY = wire.encode_reply(
    Reply("", None, "busy", "cannot answer: too many requests", "try again in a moment")
) + b"\n"  # fmt: skip

RequestHandler = Callable[[Request], Awaitable[Reply]]


class Lines:
    """Serve connections of a Door: `answer` gets requests whose op is one of `ops`.

    An answer may contain text from the engine only for `trusted` clients.
    """

    def __init__(self, answer: RequestHandler, ops: Collection[str], *, trusted: bool) -> None:
        self._answer, self._ops, self._trusted = answer, ops, trusted

    async def serve(self, link: socket.socket, got: bytes = b"") -> None:
        """Answer one request, of which `got` has been read already."""
        loop = asyncio.get_running_loop()
        line = await asyncio.wait_for(_read_line(link, got), READ_S)
        if line is None:
            return
        reply = await self._reply(link, line)
        if reply is not None:
            frame = wire.encode_reply(reply) + b"\n"
            await asyncio.wait_for(loop.sock_sendall(link, frame), WRITE_S)

    async def _reply(self, link: socket.socket, line: bytes) -> Reply | None:
        if len(line) > MAX_LINE:
            text = f"cannot read a request of more than {MAX_LINE} bytes"
            return Reply("", None, "too-large", text)
        try:
            request = replace(wire.decode_request(line), trusted=self._trusted)
        except WireError as problem:
            return Reply(problem.id, None, problem.code, problem.message, problem.hint)
        if request.op not in self._ops:
            return not_permitted(request)
        answering = asyncio.ensure_future(self._answer(request))
        try:
            while not answering.done():
                await asyncio.wait([answering], timeout=LOOK_S)
                if not answering.done() and _is_gone(link):
                    return None
            return answering.result()
        finally:
            answering.cancel()


def not_permitted(request: Request) -> Reply:
    """The refusal of a request on the wrong socket."""
    return Reply(
        request.id,
        code="not-permitted",
        message=f'cannot do "{request.op[:64]}" on this socket',
        hint="send it over ZeroMQ to the control socket, which is for root and the control group",
    )


async def _read_line(link: socket.socket, got: bytes) -> bytes | None:
    """Read the first line, cut at MAX_LINE if it has not ended; None for no bytes."""
    loop = asyncio.get_running_loop()
    while b"\n" not in got and len(got) <= MAX_LINE:
        data = await loop.sock_recv(link, MAX_LINE)
        if not data:
            break
        got += data
    return got.split(b"\n", 1)[0] or None


def _is_gone(link: socket.socket) -> bool:
    """Whether the peer closed the connection; one that only stopped sending still listens."""
    poll = select.poll()
    with contextlib.suppress(OSError, ValueError):
        poll.register(link, select.POLLHUP)
        return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))
    return True
