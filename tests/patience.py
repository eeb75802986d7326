"""Wait for a condition with generous limits: a slow machine is no failure."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar

LIMIT_S = 120.0
PATIENCE_S = 600.0  # for what a whole daemon does
LOOK_S = 0.005
T = TypeVar("T")


def until(
    look: Callable[[], T], what: str, limit_s: float = PATIENCE_S, every_s: float = 0.05
) -> T:
    """Ask again and again until the answer is true; that answer. Fails after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"never seen within {limit_s:.0f} s: {what}"
        time.sleep(every_s)
    return found


def eventually(holds: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """`until` for what comes at once on a machine with nothing else to do."""
    until(holds, "what the test waits for", limit_s, LOOK_S)


async def soon(holds: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
    """`eventually` inside an event loop, where the question may be a coroutine; its answer."""
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
    """Let the event loop run everything that is ready, so many times."""
    for _ in range(count):
        await asyncio.sleep(0)
