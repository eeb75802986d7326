"""The forms in which clients expect errors and lists of models: OpenAI's and Anthropic's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from caovand.core.gateway.events import Why
from caovand.core.problem import Problem


class Form(Enum):
    """The API whose client sent the request."""

    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"


def form_of(path: str, *, anthropic: bool) -> Form:
    """The form for a path; `anthropic` says whether the client names that API's version."""
    if anthropic or path.startswith("/v1/messages"):
        return Form.ANTHROPIC
    return Form.RESPONSES if path.startswith("/v1/responses") else Form.OPENAI


@dataclass(frozen=True)
class Fault:
    """An error with its HTTP status; `code` is a word for programs."""

    status: int
    code: str
    problem: Problem
    retry_after_s: int | None = None

    @property
    def text(self) -> str:
        """The message for people."""
        after = "" if self.retry_after_s is None else f" (Retry-After: {self.retry_after_s} s)"
        return f"{self.problem}{after}"


_ANTHROPIC_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error",
    408: "invalid_request_error", 413: "request_too_large", 422: "invalid_request_error",
    429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip
_OPENAI_TYPES = {429: "rate_limit_error"}


def document(form: Form, fault: Fault) -> dict[str, Any]:
    """The body of an error."""
    if form is Form.ANTHROPIC:
        kind = _ANTHROPIC_TYPES.get(fault.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": fault.text}}
    client = "invalid_request_error" if fault.status < 500 else "server_error"
    kind = _OPENAI_TYPES.get(fault.status, client)
    error = {"message": fault.text, "type": kind, "param": None, "code": fault.code}
    return {"error": error}


def error_event(form: Form, fault: Fault) -> bytes:
    """The error as the last event of a stream."""
    body = document(form, fault)
    if form is Form.OPENAI:
        return _data(body)
    if form is Form.RESPONSES:
        body = {"type": "error", "code": fault.code, "message": fault.text, "param": None, **body}
    return b"event: error\n" + _data(body)


def wrap_error(form: Form, error: Mapping[str, Any]) -> bytes:
    """An engine's own error, which it answered with instead of a stream."""
    return (b"" if form is Form.OPENAI else b"event: error\n") + _data(error)


_ERRORS = (b'data: {"error"', b"event: error")


def error_at(chunk: bytes, *, fresh: bool) -> int:
    """Return the offset of an engine's error event in a piece of a stream, -1 without one.

    `fresh` says that the piece begins with an event. No text can be mistaken for an error: JSON
    contains no line end.
    """
    if b"error" not in chunk:
        return -1
    if fresh and chunk.startswith(_ERRORS):
        return 0
    places = [chunk.find(b"\n\n" + error) for error in _ERRORS]
    return min((place + 2 for place in places if place >= 0), default=-1)


def _data(body: Mapping[str, Any]) -> bytes:
    # JSON contains no line end: nothing in a text can begin another event.
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def comment(text: str) -> bytes:
    """A comment in a stream before its answer: every client skips it."""
    return b": " + " ".join(text.split()).encode("utf-8", "replace") + b"\n\n"


def is_comment(chunk: bytes) -> bool:
    """Whether a piece of a stream, which begins with a line, is nothing but comments.

    vLLM sends them while a request waits for its first token.
    """
    return chunk.startswith(b":") and all(
        line.startswith(b":") or not line.strip() for line in chunk.split(b"\n")
    )


def models(
    names: Sequence[str], context: int | None, state: str, expected_s: float | None
) -> dict[str, Any]:
    """The list of models, which clients of both APIs can read."""
    listed = [_model(name, context, state, expected_s) for name in names]
    ends = {"first_id": names[0], "last_id": names[-1]} if names else {}
    return {"object": "list", "data": listed, "has_more": False, **ends}


def _model(name: str, context: int | None, state: str, expected_s: float | None) -> dict[str, Any]:
    return {
        "id": name, "object": "model", "created": 0, "owned_by": "caovan",
        "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z",
        "max_model_len": context, "state": state,
        "expected_s": None if expected_s is None else round(expected_s),
    }  # fmt: skip


def contexts(body: str) -> dict[str, int]:
    """The model names in a server's list, each with its context in tokens, 0 if unknown.

    Empty for anything else. llama.cpp has its own field for the context.
    """
    try:
        return {
            str(entry["id"]): int(
                entry.get("max_model_len") or (entry.get("meta") or {}).get("n_ctx") or 0
            )
            for entry in json.loads(body)["data"]
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def unknown_model(name: str, names: Sequence[str]) -> Fault:
    """A model that is not served here."""
    there = f"use one of: {', '.join(names)}"
    fact = f"unknown model {json.dumps(name[:100])}"
    return Fault(404, "model_not_found", Problem("answer", fact, there))


_AGAIN = "send it again later"
_FAULTS: Mapping[Why, tuple[int, str, Problem]] = {
    Why.NO_ENGINE: (
        503,
        "no_engine",
        Problem(
            "answer", "the engine is stopped or has failed", "`caovanctl status` shows the reason"
        ),
    ),
    Why.TOO_LONG: (
        503,
        "waited_too_long",
        Problem("answer", "no engine could accept the request within [gateway] hold_s", _AGAIN),
    ),
    Why.WOULD_WAIT: (
        503,
        "would_wait_too_long",
        Problem("answer", "the request would wait longer than [gateway] hold_s", _AGAIN),
    ),
    Why.QUEUE_FULL: (
        429,
        "queue_full",
        Problem("answer", "the queue is full ([gateway] max_waiting)", _AGAIN),
    ),
    Why.KEY_FULL: (
        429,
        "key_queue_full",
        Problem("answer", "this key's requests already fill half of [gateway] max_waiting", _AGAIN),
    ),
    Why.BYTES_FULL: (
        429,
        "queue_full",
        Problem("answer", "the waiting bodies use eight times [gateway] max_body_mib", _AGAIN),
    ),
    Why.ENGINE_ENDED: (
        503,
        "engine_ended",
        Problem("answer", "the engine exited while processing the request", "send it again"),
    ),
    Why.KILLER: (
        422,
        "ends_engine",
        Problem(
            "answer",
            "the engine crashed twice on this request, the second time with no other "
            "request running",
            "change the request; `caovanctl incidents` has the details",
        ),
    ),
    Why.CLOSING: (
        503,
        "gateway_ends",
        Problem("answer", "caovan's gateway is stopping or restarting", _AGAIN),
    ),
    Why.LOST: (
        502,
        "connection_lost",
        Problem(
            "answer",
            "the engine closed the connection each time",
            "the engine's log shows the reason",
        ),
    ),
}


def fault_of(why: Why, retry_after_s: int | None) -> Fault:
    """The error for a request that ends without the engine's whole answer."""
    status, code, problem = _FAULTS[why]
    return Fault(status, code, problem, retry_after_s)
