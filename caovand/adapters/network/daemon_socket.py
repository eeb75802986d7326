"""A client of the daemon's sockets for its own servers: one line of JSON each way."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from caovand.core.problem import ProblemError, reason_of
from caovand.core.reporting import wire
from caovand.core.reporting.wire import Request, WireError

ANSWER_S = 10.0


class Unreachable(ProblemError):
    """The daemon cannot be reached."""

    def __init__(self, fact: str) -> None:
        super().__init__("ask caovand", fact, "check `systemctl status caovan`")


class Declined(ProblemError):
    """The daemon answered with a problem; `code` is the protocol's."""

    def __init__(self, code: str, message: str, hint: str) -> None:
        cannot, _, fact = message.removeprefix("cannot ").partition(": ")
        super().__init__(cannot if fact else "", fact or message, hint)
        self.code = code


async def ask(path: Path, request: Request, answer_s: float = ANSWER_S) -> Mapping[str, Any]:
    """The result of one request; raises Unreachable or Declined."""
    try:
        line = await asyncio.wait_for(_exchange(path, request), answer_s)
        reply = wire.decode_reply(line, wire.MAX_LINE_BYTES)
    except asyncio.TimeoutError:
        raise Unreachable(f"it did not answer within {answer_s:.0f} s") from None
    except (ValueError, WireError) as problem:
        raise Unreachable(f"its answer cannot be parsed ({problem})") from None
    except OSError as problem:
        raise Unreachable(reason_of(problem)) from None
    if reply.result is None:
        raise Declined(reply.code, reply.message, reply.hint)
    return reply.result


async def _exchange(path: Path, request: Request) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path, limit=wire.MAX_LINE_BYTES)
    try:
        writer.write(wire.encode_request(request) + b"\n")
        line = await reader.readline()
        if not line:
            raise ConnectionResetError("it closed the connection")
        return line
    finally:
        writer.close()
