"""The engine's own health check, which tells a bad request from a dying engine."""

from __future__ import annotations

import asyncio

from aiohttp import ClientError, ClientTimeout

from caovand.gateway.facts import Facts
from caovand.gateway.upstream import Upstream

ANSWER_S = 5.0


async def is_healthy(upstream: Upstream, facts: Facts) -> bool:
    """Whether the engine answers in time, and without a fault of its own.

    vLLM's answers 503 once its core has died.
    """
    limit = ClientTimeout(total=ANSWER_S)
    try:
        async with upstream.session(facts).get(
            f"{facts.url}{facts.health}", allow_redirects=False, timeout=limit
        ) as response:
            return response.status < 500
    except (ClientError, OSError, asyncio.TimeoutError):
        return False
