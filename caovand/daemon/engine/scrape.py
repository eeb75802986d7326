"""Asks an engine's server for its health and its counters."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from caovand.adapters.network import http
from caovand.adapters.network.http import Endpoint, Stranger, Unanswered
from caovand.core import limits
from caovand.core.engine.record import Api
from caovand.core.figures.counters import Reading

ANSWER_S = 5.0


@dataclass(frozen=True)
class ScrapeResult:
    """An answer with metrics, and what it says."""

    body: str
    reading: Reading


async def answer(endpoint: Endpoint, path: str) -> http.Answer | None:
    """The answer from `path`, None if there is none.

    Raises Stranger if another process answers, and Unanswered where we could not ask.
    """
    try:
        return await asyncio.to_thread(http.call, endpoint, path, ANSWER_S)
    except Stranger:
        raise
    except Unanswered as problem:
        if limits.limit_reached(problem):
            raise  # we could not ask: not the engine's fault
        return None


async def metrics(endpoint: Endpoint, api: Api, pending: int) -> ScrapeResult | None:
    """The engine's counters, None if it reports none; raises as `answer` does.

    `pending` is how many requests are known to be under way: only without any is the engine asked.
    """
    found = await answer(endpoint, api.metrics)
    if found is None or found.status != 200:
        return None
    load: int | None = pending or await asyncio.to_thread(_load, endpoint, api)
    # Megabytes of short lines take a second: the loop feeds the watchdog.
    reading = await asyncio.to_thread(api.read_metrics, found.body, load, time.monotonic())
    return ScrapeResult(found.body, reading)


def _load(endpoint: Endpoint, api: Api) -> int | None:
    """Requests under way, by the server's own count."""
    try:
        if not api.pending:
            return None
        return http.read_count(endpoint, api.pending, api.pending_key, ANSWER_S)
    except Stranger:
        raise
    except Unanswered:
        return None
