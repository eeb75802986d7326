"""Completions by OpenAI's API, and the requests of models that generate no text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from caovand.adapters.network import http
from caovand.adapters.network.http import Endpoint, Unanswered
from caovand.core.engine.record import TaskRequest, Upload


def completion_body(
    model: str, prompt: Sequence[int] | str, tokens: int, **fields: Any
) -> dict[str, Any]:
    """The body of a request for a greedy completion of exactly `tokens` tokens.

    `ignore_eos` makes a model generate them all, even if it would stop at once. `fields` are added.
    """
    return {
        "model": model,
        "prompt": prompt if isinstance(prompt, str) else list(prompt),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        **fields,
    }


def complete(
    endpoint: Endpoint,
    path: str,
    model: str,
    prompt: Sequence[int] | str,
    tokens: int,
    timeout_s: float,
) -> int:
    """Generate `tokens` tokens after `prompt`, a text or token ids; return how many arrived.

    Raises Unanswered.
    """
    body = completion_body(model, prompt, tokens)
    answer = complete_as_json(endpoint, path, body, timeout_s)
    count = http.read_count_in(answer, "usage", "completion_tokens")
    if count is None:
        raise Unanswered(f"{path}: the answer has no usage: {endpoint.redact(answer)}")
    return count


def complete_as_json(
    endpoint: Endpoint, path: str, body: Mapping[str, Any], timeout_s: float
) -> str:
    """Return a completion's JSON; raises Unanswered."""
    return _post(endpoint, path, body, timeout_s, http.MAX_COUNT_BYTES)


def run_task(
    endpoint: Endpoint, work: TaskRequest, model: str, prompt: Sequence[int], timeout_s: float
) -> None:
    """Run one request on a model that generates no text; raises Unanswered, also for a wrong
    answer."""
    answer = _post(endpoint, work.path, work.body(model, prompt), timeout_s)
    try:
        flaw = work.flaw(json.loads(answer))
    except (ValueError, RecursionError):
        flaw = "it is not JSON"
    if flaw:
        raise Unanswered(f"{work.path}: a wrong answer: {flaw}: {endpoint.redact(answer)}")


def _post(
    endpoint: Endpoint,
    path: str,
    body: Mapping[str, Any] | Upload,
    timeout_s: float,
    max_bytes: int | None = None,
) -> str:
    answer = http.call(endpoint, path, timeout_s, body, max_bytes=max_bytes)
    if answer.status != 200:
        raise Unanswered(f"{path}: HTTP {answer.status}: {endpoint.redact(answer.body)}")
    return answer.body
