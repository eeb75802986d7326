"""Query the daemon on the page's own socket: one line of JSON each way.

Identical queries of many readers share one reply for a moment.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from caovand.adapters.network import daemon_socket
from caovand.core.reporting.wire import Request

MAX_CONCURRENT = 4
FRESH_S = 1.0
MAX_KEPT = 64
MAX_FILE_BYTES = 4 << 20

Key = tuple[str, str, tuple[tuple[str, Any], ...]]


class Daemon:
    """The daemon behind the socket `page`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turn = asyncio.Semaphore(MAX_CONCURRENT)
        self._kept: dict[Key, asyncio.Task[Mapping[str, Any]]] = {}

    async def ask(self, op: str, model: str = "", **args: Any) -> Mapping[str, Any]:
        """The result of one request; raises Unreachable or Declined."""
        async with self._turn:
            return await daemon_socket.ask(self._path, Request(op, args, model=model))

    async def ask_shared(self, op: str, model: str = "", **args: Any) -> Mapping[str, Any]:
        """Like `ask`, but may return a reply up to FRESH_S old."""
        key = (op, model, tuple(sorted(args.items())))
        task = self._kept.get(key)
        if task is None:
            while len(self._kept) >= MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            task = self._kept[key] = asyncio.ensure_future(self.ask(op, model, **args))
            task.add_done_callback(lambda done: self._keep(key, done))
        return await asyncio.shield(task)

    def forget(self, op: str) -> None:
        """Discard cached replies to `op`: they predate an event that has just happened."""
        for key in [key for key in self._kept if key[0] == op]:
            del self._kept[key]

    async def file(self, name: str, number: int, model: str) -> bytes:
        """A file of an incident, fetched in pieces."""
        parts: list[bytes] = []
        offset: int | None = 0
        while offset is not None and offset <= MAX_FILE_BYTES:
            piece = await self.ask_shared(
                "incident", model, number=number, file=name, offset=offset
            )
            parts.append(base64.b64decode(piece["data"]))
            offset = piece["next"]
        return b"".join(parts)

    def _keep(self, key: Key, done: asyncio.Task[Mapping[str, Any]]) -> None:
        if not done.cancelled():
            done.exception()  # waiting readers have it; perhaps none is left

        def forget() -> None:
            if self._kept.get(key) is done:
                del self._kept[key]

        asyncio.get_running_loop().call_later(FRESH_S, forget)
