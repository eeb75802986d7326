"""Detect what a scenario on a loop leaves open."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

from tests.patience import soon


def run(work: Callable[[], Awaitable[None]]) -> None:
    """Run it, and see that it leaves no descriptor."""

    async def watched() -> None:
        await asyncio.to_thread(os.getpid)
        before = descriptors()
        await work()
        await soon(lambda: descriptors() <= before)

    asyncio.run(watched())


def descriptors() -> int:
    """How many this process has open."""
    return len(os.listdir("/proc/self/fd"))
