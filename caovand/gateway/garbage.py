"""Collect garbage while there is no request: with 2,000 answers in progress, a full collection
stops every stream for 100 ms."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

LOOK_S = 1.0
MIDDLE_COLLECTIONS = 500
"""The number of middle-generation collections after which a full one starts without waiting for a
pause: five million new objects, as many as 20,000 streams make. A few thousand of them are garbage
that only a full one finds.
"""


async def collect_when_idle(is_idle: Callable[[], bool]) -> None:
    """Collect all garbage in each pause after the collector has run, as long as the loop runs."""
    *_, usual = gc.get_threshold()
    _limit_full_collections(MIDDLE_COLLECTIONS)
    known = _collections()
    try:
        while True:
            await asyncio.sleep(LOOK_S)
            if is_idle() and _collections() != known:
                gc.collect()
                known = _collections()
    finally:
        _limit_full_collections(usual)


def _limit_full_collections(after: int) -> None:
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, after)


def _collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())
