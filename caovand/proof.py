"""Readiness as real work: /health is a flag, so only completions that came back count.

The first completion is long enough that drafting and verification run, the second repeats its
prompt so that the prefix cache is used. The port must be the engine's alone: vLLM 0.21 shares it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from caovand.adapters import http
from caovand.adapters.http import Endpoint, Stranger, Unanswered
from caovand.core import limits
from caovand.core.failure import Finding
from caovand.core.flags import count
from caovand.core.plan import Plan
from caovand.core.status import served_name
from caovand.peers import Peers

LOOK_S = 0.25
HEALTH_TIMEOUT_S = 10.0
# As long as many a block of a cache that vLLM aligns between attention and recurrent state pages,
# so that the second completion may find one in the prefix cache, where that is on.
PROMPT_TOKENS = 1024
T = TypeVar("T")


class NotReady(Exception):
    """The engine answers, but wrongly: waiting longer cannot help."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.text)
        self.finding = finding


async def prove(
    peers: Peers, plan: Plan, endpoint: Endpoint, limit_s: float, on_step: Callable[[str], None]
) -> None:
    """Wait until the engine has done real work; raises NotReady.

    `peers` know the engine's processes. Each completion may take `limit_s` seconds: kernels are
    compiled in the first one. `on_step` is told what is being waited for.
    """
    try:
        await _listening(peers, endpoint)
        await _working(plan, endpoint, limit_s, on_step)
    except Stranger as problem:
        raise NotReady(shared(problem)) from problem


def shared(problem: Stranger) -> Finding:
    """What it means that another process has the engine's port."""
    return Finding("port-busy", str(problem), "http")


async def _working(
    plan: Plan, endpoint: Endpoint, limit_s: float, on_step: Callable[[str], None]
) -> None:
    tokens = 2 * (plan.mtp + 1)
    model = served_name(plan)
    prompt = _prompt(plan)
    for name in ("first completion", "second completion"):
        on_step(name)
        try:
            got = await tried(http.complete, endpoint, model, prompt, tokens, limit_s)
        except Stranger:
            raise
        except Unanswered as problem:
            text = f"the {name} did not come back: {problem}"
            raise NotReady(Finding("engine-died", text, "proof")) from problem
        if got != tokens:
            text = f"the {name} has {got} tokens instead of {tokens}"
            raise NotReady(Finding("engine-died", text, "proof"))


async def _listening(peers: Peers, endpoint: Endpoint) -> None:
    """Wait for the engine's listener and its health; raises Stranger where the port is shared."""
    while True:
        if await tried(peers.listening, endpoint.port):
            try:
                answer = await tried(http.call, endpoint, "/health", HEALTH_TIMEOUT_S)
                if answer.status == 200:
                    return
            except Stranger:
                raise
            except Unanswered:
                pass  # a busy machine answers late; the start's own deadline bounds this
        await asyncio.sleep(LOOK_S)


async def tried(
    call: Callable[..., T], *arguments: Any, lacking: Callable[[], None] = lambda: None
) -> T:
    """`call` in a thread, again as long as we lack what it needs: that says nothing of the engine.

    The start's own deadline bounds this; `lacking` is called each time.
    """
    while True:
        try:
            return await asyncio.to_thread(call, *arguments)
        except Exception as problem:
            if not limits.reached(problem):
                raise
        lacking()
        await asyncio.sleep(LOOK_S)


def _prompt(plan: Plan) -> list[int]:
    """Token ids that every vocabulary has, at most half of the context."""
    longest = count(plan.value("max_model_len"))
    length = min(PROMPT_TOKENS, longest // 2) if longest else PROMPT_TOKENS
    return [16 + (7 * place + place // 29) % 192 for place in range(max(length, 1))]
