"""Waiting for what must come true, generously: a slow machine is no failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

LIMIT_S = 30.0
LOOK_S = 0.005


def eventually(holds: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Return once `holds()` is true; fail the test after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, f"did not come true within {limit_s:.0f} s"
        time.sleep(LOOK_S)


async def soon(holds: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """`eventually` inside an event loop."""
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, f"did not come true within {limit_s:.0f} s"
        await asyncio.sleep(LOOK_S)
