"""Query an engine's server for its health and counters."""

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
    """A response with metrics, and its contents."""

    body: str
    reading: Reading


async def answer(endpoint: Endpoint, path: str) -> http.HttpResponse | None:
    """The response from `path`; None without one.

    Raises Stranger if another process answers, and Unanswered if we could not ask.
    """
    try:
        return await asyncio.to_thread(http.call, endpoint, path, ANSWER_S)
    except Stranger:
        raise
    except Unanswered as problem:
        if limits.limit_reached(problem):
            raise  # we could not ask, which is not the engine's fault
        return None


async def metrics(endpoint: Endpoint, api: Api, pending: int) -> ScrapeResult | None:
    """The engine's counters; None if it reports none; raises like `answer`.

    `pending` is the number of requests known to be in progress; the engine is asked for its own
    count only if this is 0.
    """
    response = await answer(endpoint, api.metrics)
    if response is None or response.status != 200:
        return None
    load: int | None = pending or await asyncio.to_thread(_load, endpoint, api)
    # Parsing megabytes of short lines takes a second, while the loop must feed the watchdog.
    reading = await asyncio.to_thread(api.read_metrics, response.body, load, time.monotonic())
    return ScrapeResult(response.body, reading)


def _load(endpoint: Endpoint, api: Api) -> int | None:
    """Requests in progress, by the server's own count."""
    try:
        if not api.pending:
            return None
        return http.read_count(endpoint, api.pending, api.pending_key, ANSWER_S)
    except Stranger:
        raise
    except Unanswered:
        return None
