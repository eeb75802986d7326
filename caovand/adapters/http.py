"""Talking to the engine's HTTP server: bounded in time and size, one connection a call."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_ANSWER_BYTES = 8 << 20


class Unanswered(Exception):
    """No whole answer came back: refused, reset, timed out or too large."""


@dataclass(frozen=True)
class Answer:
    """An HTTP answer with its body as text."""

    status: int
    body: str


@dataclass(frozen=True)
class Endpoint:
    """Where the engine listens; `key` is the API key it asks for, empty for none.

    With `tls` its certificate is not checked: it is our own child that we talk to.
    """

    host: str
    port: int
    key: str = ""
    tls: bool = False

    @property
    def address(self) -> str:
        """The host to connect to: the loopback where the engine listens everywhere."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)


def call(
    endpoint: Endpoint, path: str, timeout_s: float, body: Mapping[str, Any] | None = None
) -> Answer:
    """GET `path`, or POST `body` as JSON; raises Unanswered."""
    connection = _connection(endpoint, timeout_s)
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        with contextlib.suppress(OSError, AttributeError):
            link.shutdown(socket.SHUT_RDWR)

    # The timeout of a socket is one of silence: who sends a byte now and then outlives it.
    timer = threading.Timer(timeout_s, expire)
    headers = {"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
    try:
        connection.connect()
        link = connection.sock
        timer.start()
        if body is None:
            connection.request("GET", path, headers=headers)
        else:
            headers["Content-Type"] = "application/json"
            connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        data = answer.read(MAX_ANSWER_BYTES + 1)
    except (OSError, UnicodeError, http.client.HTTPException) as problem:
        if not expired.is_set():
            raise Unanswered(f"{path}: {problem or type(problem).__name__}") from problem
    finally:
        timer.cancel()
        connection.close()
    if expired.is_set():
        raise Unanswered(f"{path}: no whole answer within {timeout_s:g} s")
    if len(data) > MAX_ANSWER_BYTES:
        raise Unanswered(f"{path}: more than {MAX_ANSWER_BYTES} bytes")
    if answer.length:  # of the announced bytes, those that did not come
        raise Unanswered(f"{path}: half an answer")
    return Answer(answer.status, data.decode("utf-8", "replace"))


def _connection(endpoint: Endpoint, timeout_s: float) -> http.client.HTTPConnection:
    if not endpoint.tls:
        return http.client.HTTPConnection(endpoint.address, endpoint.port, timeout=timeout_s)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(
        endpoint.address, endpoint.port, timeout=timeout_s, context=context
    )


def pending_requests(endpoint: Endpoint, timeout_s: float) -> int | None:
    """Requests the server has accepted and not answered; None where it does not count them."""
    answer = call(endpoint, "/load", timeout_s)
    try:
        return int(json.loads(answer.body)["server_load"]) if answer.status == 200 else None
    except (ValueError, KeyError, TypeError):
        return None


def complete(
    endpoint: Endpoint, model: str, prompt: Sequence[int], tokens: int, timeout_s: float
) -> int:
    """Generate `tokens` tokens after the token ids `prompt`; how many came. Raises Unanswered.

    `ignore_eos` keeps a model that would stop at once from hiding the work to be proven.
    """
    body = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    answer = call(endpoint, "/v1/completions", timeout_s, body)
    if answer.status != 200:
        raise Unanswered(f"/v1/completions: HTTP {answer.status}: {answer.body[:300]}")
    try:
        return int(json.loads(answer.body)["usage"]["completion_tokens"])
    except (ValueError, KeyError, TypeError) as problem:
        raise Unanswered(
            f"/v1/completions: an answer without usage: {answer.body[:300]}"
        ) from problem
