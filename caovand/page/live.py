"""GET /api/live: server-sent events, no faster than the reader reads them."""

from __future__ import annotations

import asyncio

from aiohttp import web

from caovand.page.feed import Feeds
from caovand.page.refusal import Refusal

MAX_READERS = 64
UNREAD_BYTES = 16 << 10  # in the connection's buffer: above it, a reader gets nothing new
POLL_S = 0.25
STUCK_S = 30.0


async def stream(request: web.Request, feeds: Feeds, model: str) -> web.StreamResponse:
    """Send news until the reader disconnects or no longer reads."""
    with feeds.reading(model, request.headers.get("Last-Event-ID", "")) as seat:
        if seat is None:
            fact = f"{MAX_READERS} readers are connected already"
            raise Refusal(503, "show live data", fact, "close another tab, or try again later")
        reader, news = seat
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while not reader.lost:
            await news.wait()
            news.clear()
            if not await _has_read(request.transport):
                break
            if data := reader.take():
                try:  # a long message waits here until most of it is read
                    await asyncio.wait_for(response.write(data), STUCK_S)
                except asyncio.TimeoutError:
                    break
        if request.transport is not None:
            request.transport.abort()
        return response


async def _has_read(transport: asyncio.Transport | None) -> bool:
    """Wait until a reader has read most of its data; False if it disconnects or is stuck."""
    waited_s = 0.0
    while transport is not None and not transport.is_closing():
        if transport.get_write_buffer_size() <= UNREAD_BYTES:
            return True
        if waited_s >= STUCK_S:
            return False
        await asyncio.sleep(POLL_S)
        waited_s += POLL_S
    return False
