"""Wait for a condition with generous limits, as a slow machine is not a failure."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar

LIMIT_S = 120.0
PATIENCE_S = 600.0  # for work of a whole daemon
LOOK_S = 0.005
T = TypeVar("T")


def until(
    look: Callable[[], T], what: str, limit_s: float = PATIENCE_S, every_s: float = 0.05
) -> T:
    """Poll until the result is true, and return it. Fails after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"never seen within {limit_s:.0f} s: {what}"
        time.sleep(every_s)
    return found


def eventually(holds: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """`until` for conditions that an idle machine meets at once."""
    until(holds, "what the test waits for", limit_s, LOOK_S)


async def soon(holds: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
    """`eventually` inside an event loop; the condition may be a coroutine. Returns its result."""
    deadline = time.monotonic() + limit_s
    while True:
        found = holds()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"did not come true within {limit_s:.0f} s"
        await asyncio.sleep(LOOK_S)


async def turns(count: int = 1) -> None:
    """Let the event loop run everything that is ready, this many times."""
    for _ in range(count):
        await asyncio.sleep(0)
