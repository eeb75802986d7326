"""Asks the daemon on the page's own socket: a line of JSON there, one back.

What many readers ask for is asked once: an answer serves everybody for a moment.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from caovand.core.problem import ProblemError
from caovand.core.reporting import wire
from caovand.core.reporting.wire import Request, WireError

ANSWER_S = 10.0
AT_ONCE = 4
FRESH_S = 1.0
MOST_KEPT = 64
MOST_FILE_BYTES = 4 << 20

Key = tuple[str, str, tuple[tuple[str, Any], ...]]


class Unreachable(ProblemError):
    """The daemon cannot be asked."""

    def __init__(self, fact: str) -> None:
        super().__init__("ask caovand", fact, "check `systemctl status caovan`")


class Declined(ProblemError):
    """The daemon's answer is a problem; `code` is the protocol's."""

    def __init__(self, code: str, message: str, hint: str) -> None:
        cannot, _, fact = message.removeprefix("cannot ").partition(": ")
        super().__init__(cannot if fact else "", fact or message, hint)
        self.code = code


class Daemon:
    """The daemon whose socket `page` this is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._kept: dict[Key, asyncio.Task[Mapping[str, Any]]] = {}

    async def ask(self, op: str, model: str = "", **args: Any) -> Mapping[str, Any]:
        """The result of one request; raises Unreachable or Declined."""
        try:
            async with self._turn:
                request = Request(op, args, model=model)
                line = await asyncio.wait_for(self._exchange(request), ANSWER_S)
            reply = wire.decode_reply(line, wire.MOST_LINE_BYTES)
        except asyncio.TimeoutError:
            raise Unreachable(f"it did not answer within {ANSWER_S:.0f} s") from None
        except (ValueError, WireError) as problem:
            raise Unreachable(f"its answer cannot be read ({problem})") from None
        except OSError as problem:
            raise Unreachable(problem.strerror or str(problem)) from None
        if reply.result is None:
            raise Declined(reply.code, reply.message, reply.hint)
        return reply.result

    async def shared(self, op: str, model: str = "", **args: Any) -> Mapping[str, Any]:
        """`ask`, or an answer that is not older than FRESH_S."""
        key = (op, model, tuple(sorted(args.items())))
        task = self._kept.get(key)
        if task is None:
            while len(self._kept) >= MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            task = self._kept[key] = asyncio.ensure_future(self.ask(op, model, **args))
            task.add_done_callback(lambda done: self._keep(key, done))
        return await asyncio.shield(task)

    def forget(self, op: str) -> None:
        """Ask anew whatever answers are kept: they are of before what has just happened."""
        for key in [key for key in self._kept if key[0] == op]:
            del self._kept[key]

    async def file(self, name: str, number: int, model: str) -> bytes:
        """A file of an incident, which comes in pieces."""
        parts: list[bytes] = []
        offset: int | None = 0
        while offset is not None and offset <= MOST_FILE_BYTES:
            found = await self.shared("incident", model, number=number, file=name, offset=offset)
            parts.append(base64.b64decode(found["data"]))
            offset = found["next"]
        return b"".join(parts)

    async def _exchange(self, request: Request) -> bytes:
        reader, writer = await asyncio.open_unix_connection(self._path, limit=wire.MOST_LINE_BYTES)
        try:
            writer.write(wire.encode_request(request) + b"\n")
            line = await reader.readline()
            if not line:
                raise ConnectionResetError("it closed the connection")
            return line
        finally:
            writer.close()

    def _keep(self, key: Key, done: asyncio.Task[Mapping[str, Any]]) -> None:
        if not done.cancelled():
            done.exception()  # whoever waits has it; nobody may wait any more

        def forget() -> None:
            if self._kept.get(key) is done:
                del self._kept[key]

        asyncio.get_running_loop().call_later(FRESH_S, forget)
