"""The page's box to try the model: one chat with the engine, streamed through.

The API key is added here and never shown. Two chats at a time keep readers from overloading the
engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector, web

from caovand.core import api_key
from caovand.core.addresses import join_address
from caovand.core.problem import ProblemError
from caovand.page.ask import Daemon
from caovand.page.refusal import Refusal

MAX_PROMPT = 32_000
MAX_TOKENS = 1024
DEFAULT_TOKENS = 256
MAX_CONCURRENT = 2
WHOLE_S = 600.0
SILENCE_S = 180.0
WRITE_S = 30.0
PIECE_BYTES = 16 << 10


def body_of(document: Any) -> tuple[str, dict[str, Any]]:
    """The model and the chat from a request's JSON; raises Refusal for an invalid key or value."""
    if not isinstance(document, dict):
        raise _bad("the body is not a JSON object", 'send {"prompt": "..."}')
    unknown = sorted(document.keys() - {"prompt", "max_tokens", "model"})
    if unknown:
        raise _bad(f'unknown field "{unknown[0][:64]}"', "send only prompt, max_tokens and model")
    prompt, model = document.get("prompt"), document.get("model", "")
    tokens = document.get("max_tokens", DEFAULT_TOKENS)
    if not isinstance(prompt, str) or not prompt.strip():
        raise _bad("prompt is not a string", "enter a prompt")
    if len(prompt) > MAX_PROMPT:
        fact = f"the prompt has {len(prompt):,} characters, more than {MAX_PROMPT:,}"
        raise _bad(fact, "shorten it")
    if type(tokens) is not int or not 1 <= tokens <= MAX_TOKENS:
        raise _bad("max_tokens is not an integer in that range", f"choose 1 to {MAX_TOKENS}")
    if not isinstance(model, str):
        raise _bad("model is not a string", "name a model of `caovanctl status`")
    chat = {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens}
    return model, {**chat, "stream": True, "stream_options": {"include_usage": True}}


class ReaderGone(Exception):
    """The reader has disconnected, or reads no more."""


class Chats:
    """The running chats."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._under_way = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """POST /api/try."""
        if request.content_type != "application/json":
            fact = "the body is not application/json"
            raise Refusal(415, "try the model", fact, "send JSON")
        if self._under_way >= MAX_CONCURRENT:
            fact = f"{MAX_CONCURRENT} answers are already in progress"
            raise Refusal(429, "try the model", fact, "wait until one ends")
        self._under_way += 1
        try:
            model, chat = body_of(await _json(request))
            try:
                target = await self._daemon.ask("endpoint", model)
            except ProblemError as error:
                problem = error.problem
                raise Refusal(503, "try the model", problem.fact, problem.remedy) from None
            return await self._stream(request, target, chat)
        finally:
            self._under_way -= 1

    async def _stream(
        self, request: web.Request, target: Mapping[str, Any], chat: Mapping[str, Any]
    ) -> web.StreamResponse:
        address = join_address(target["host"], target["port"])
        url = f"http{'s' * target['tls']}://{address}{target['path']}"
        headers = api_key.bearer_headers(target["key"])
        chat = {**chat, "model": target["model"]}
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        limits = ClientTimeout(total=WHOLE_S, sock_connect=5.0, sock_read=SILENCE_S)
        # Its certificate is not verified: it is the daemon's own child on this machine.
        connector = TCPConnector(force_close=True, ssl=False)
        try:
            async with (
                ClientSession(connector=connector, timeout=limits) as session,
                session.post(url, json=chat, headers=headers, allow_redirects=False) as answer,
            ):
                if answer.status != 200:
                    text = (await answer.content.read(4096)).decode("utf-8", "replace")
                    raise _engine_refusal(
                        f"HTTP {answer.status}: {api_key.redact(target['key'], text)}"
                    )
                await response.prepare(request)
                async for piece in answer.content.iter_chunked(PIECE_BYTES):
                    await _write(response, piece)
        except ReaderGone:
            if request.transport is not None:
                request.transport.abort()
        except (ClientError, OSError, asyncio.TimeoutError) as problem:
            refusal = _engine_refusal(
                api_key.redact(target["key"], str(problem) or "the answer took too long")
            )
            if not response.prepared:
                raise refusal from None
            with contextlib.suppress(ReaderGone):
                await _write(response, f"data: {json.dumps(refusal.document)}\n\n".encode())
        return response


async def _write(response: web.StreamResponse, data: bytes) -> None:
    try:
        await asyncio.wait_for(response.write(data), WRITE_S)
    except (OSError, asyncio.TimeoutError):
        raise ReaderGone from None


async def _json(request: web.Request) -> Any:
    try:
        return json.loads(await request.read())
    except (ValueError, RecursionError):
        raise _bad("the body is not JSON", 'send {"prompt": "..."}') from None


def _bad(fact: str, remedy: str) -> Refusal:
    return Refusal(400, "try the model", fact, remedy)


def _engine_refusal(fact: str) -> Refusal:
    return Refusal(502, "try the model", f"the engine did not answer: {fact}", "caovanctl status")
