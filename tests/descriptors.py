"""Detect leaked file descriptors of asyncio code."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

from tests.patience import soon


def run(work: Callable[[], Awaitable[None]]) -> None:
    """Run the coroutine and fail if it leaks a file descriptor."""

    async def watched() -> None:
        await asyncio.to_thread(os.getpid)
        before = descriptors()
        await work()
        await soon(lambda: descriptors() <= before)

    asyncio.run(watched())


def descriptors() -> int:
    """The number of file descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))
