"""Prove readiness by real work: /health is only a flag, so two completions must succeed.

The first completion is long enough for drafting and verification; the second repeats its prompt to
use the prefix cache. A model that generates no text does its own task twice. The engine must be the
port's only owner, because vLLM 0.21 shares the port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from caovand.adapters.network import completions, http
from caovand.adapters.network.http import Endpoint, Stranger, Unanswered
from caovand.core import limits
from caovand.core.engine.record import Api, Engine
from caovand.core.healing.failure import Finding
from caovand.core.plan import Plan
from caovand.daemon.engine.peers import Peers

POLL_S = 0.25
HEALTH_TIMEOUT_S = 10.0
PROMPT_TOKENS = 1024
"""Long enough for a cache block, whose size vLLM aligns between attention and recurrent state, so
that the second completion can hit the prefix cache if it is enabled."""
MIN_TEXT = 64
"""Length of a text that every embedding model accepts; some are limited to 128 tokens."""
T = TypeVar("T")


class NotReady(Exception):
    """The engine answers wrongly, so waiting longer cannot help."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.text)
        self.finding = finding


async def prove(
    engine: Engine,
    peers: Peers,
    plan: Plan,
    endpoint: Endpoint,
    limit_s: float,
    on_step: Callable[[str], None],
) -> None:
    """Wait until the engine has completed real work; raises NotReady.

    `peers` tracks the engine's processes. Each completion may take `limit_s` seconds, because the
    first one compiles kernels. `on_step` receives the name of each step.
    """
    try:
        await _listening(engine.api.health, peers, endpoint)
        await _working(engine, plan, endpoint, limit_s, on_step)
    except Stranger as problem:
        raise NotReady(port_taken(problem)) from problem


def port_taken(problem: Stranger) -> Finding:
    """The finding that another process has the engine's port."""
    return Finding("port-busy", str(problem), "http")


async def _working(
    engine: Engine, plan: Plan, endpoint: Endpoint, limit_s: float, on_step: Callable[[str], None]
) -> None:
    tokens = 2 * (plan.mtp + 1)
    work, context = engine.api.task_requests.get(plan.task), engine.planning.context(plan)
    prompt = _prompt(MIN_TEXT if work and context is None else context)
    for name in (f"{which} {work.noun if work else 'completion'}" for which in ("first", "second")):
        on_step(name)
        try:
            answer = await retry_on_limit(
                count_answer, engine.api, plan, endpoint, prompt, tokens, limit_s
            )
        except Stranger:
            raise
        except Unanswered as problem:
            text = f"the {name} failed: {problem}"
            raise NotReady(Finding("engine-died", text, "proof")) from problem
        if answer != tokens and (engine.api.exact or not 0 < answer < tokens):
            text = f"the {name} returned {answer} tokens instead of {tokens}"
            raise NotReady(Finding("engine-died", text, "proof"))


def count_answer(
    api: Api, plan: Plan, endpoint: Endpoint, prompt: Sequence[int], tokens: int, timeout_s: float
) -> int:
    """Send a request of the plan's task; return the number of tokens, or all of them for a task
    without tokens.

    Raises Unanswered (blocking).
    """
    model, work = plan.served_name, api.task_requests.get(plan.task)
    if work is not None:
        completions.run_task(endpoint, work, model, prompt, timeout_s)
        return tokens
    return completions.complete(
        endpoint, api.completions, model, api.prompt(prompt), tokens, timeout_s
    )


async def _listening(health: str, peers: Peers, endpoint: Endpoint) -> None:
    """Wait for the engine's listener and its health; raises Stranger if the port is shared."""
    while True:
        if await retry_on_limit(peers.listening, endpoint.port):
            try:
                answer = await retry_on_limit(http.call, endpoint, health, HEALTH_TIMEOUT_S)
                if answer.status == 200:
                    return
            except Stranger:
                raise
            except Unanswered:
                pass  # a busy machine responds late; the start's own deadline applies
        await asyncio.sleep(POLL_S)


async def retry_on_limit(
    call: Callable[..., T], *arguments: Any, lacking: Callable[[], None] = lambda: None
) -> T:
    """Run `call` in a thread, and retry while our own resource limits prevent it: they are not the
    engine's fault.

    The start's own deadline applies; `lacking` is called for each failure.
    """
    while True:
        try:
            return await asyncio.to_thread(call, *arguments)
        except Exception as problem:
            if not limits.limit_reached(problem):
                raise
        lacking()
        await asyncio.sleep(POLL_S)


def _prompt(max_context: int | None) -> list[int]:
    """Token ids that every vocabulary has, at most half of the maximum context."""
    length = min(PROMPT_TOKENS, max_context // 2) if max_context else PROMPT_TOKENS
    return [16 + (7 * place + place // 29) % 192 for place in range(max(length, 1))]
