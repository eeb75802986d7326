"""The model names that an engine itself lists, such as adapters loaded with the model."""

from __future__ import annotations

import asyncio
import json

from aiohttp import ClientError, ClientSession

from caovand.core import api_key
from caovand.gateway.facts import Facts
from caovand.gateway.upstream import Upstream

ANSWER_S = 10.0
MAX_BYTES = 1 << 20
MAX_NAMES = 1000


async def list_names(upstream: Upstream, facts: Facts) -> tuple[str, ...]:
    """The engine's own names; none if it does not list them in time."""
    headers = api_key.bearer_headers(facts.key)
    session = upstream.session(facts)
    try:
        return await asyncio.wait_for(_read(session, f"{facts.url}/v1/models", headers), ANSWER_S)
    except (ClientError, OSError, ValueError, asyncio.TimeoutError):
        return ()


async def _read(session: ClientSession, url: str, headers: dict[str, str]) -> tuple[str, ...]:
    async with session.get(url, headers=headers, allow_redirects=False) as response:
        text = b""
        while len(text) <= MAX_BYTES and (piece := await response.content.readany()):
            text += piece
    document = json.loads(text)
    models = document.get("data") if isinstance(document, dict) else None
    ids = [model.get("id") for model in models or () if isinstance(model, dict)]
    return tuple(name for name in ids[:MAX_NAMES] if isinstance(name, str))
