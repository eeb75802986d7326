"""Talking to the engine's HTTP server: bounded in time and size, one connection a call.

Who answers may be anybody, and may answer anything: a call ends in an Answer or in Unanswered.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from caovand.core import api_key, limits
from caovand.core.printable import one_line

MAX_ANSWER_BYTES = 8 << 20
MAX_COUNT_BYTES = 1 << 20  # of an answer that a number is read from
MAX_HEAD_BYTES = 1 << 20
MAX_COUNT = 1 << 53
QUOTED = 300  # characters of an answer in a message


class Unanswered(Exception):
    """No whole answer came back: refused, reset, timed out or too large."""


class Stranger(Unanswered):
    """Who has the port is not the engine; nothing was sent."""


@dataclass(frozen=True)
class Answer:
    """An HTTP answer with its body as text."""

    status: int
    body: str


Vet = Callable[[socket.socket, threading.Event], None]
"""Looks who is at the other end of a connection until the event is set; raises Stranger."""


@dataclass(frozen=True)
class Endpoint:
    """Where the engine listens; `key` is the API key it asks for, empty for none.

    With `tls` its certificate is not checked: it is our own child that we talk to, and `vet` sees
    to that before anything is sent.
    """

    host: str
    port: int
    key: str = field(default="", repr=False)
    tls: bool = False
    vet: Vet | None = field(default=None, repr=False, compare=False)

    @property
    def address(self) -> str:
        """The host to connect to: the loopback where the engine listens everywhere."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)


def call(
    endpoint: Endpoint,
    path: str,
    timeout_s: float,
    body: Mapping[str, Any] | None = None,
    most: int | None = None,
) -> Answer:
    """GET `path`, or POST `body` as JSON, for an answer of `most` bytes; raises Unanswered."""
    most = most or MAX_ANSWER_BYTES
    if endpoint.key and not api_key.usable(endpoint.key):
        raise Unanswered(f"{path}: cannot send the API key: it {api_key.RULE}")
    connection = http.client.HTTPConnection(endpoint.address, endpoint.port, timeout=timeout_s)
    connection.response_class = partial(_response, most + MAX_HEAD_BYTES)  # type: ignore[assignment]
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        with contextlib.suppress(OSError):
            # Not SSLSocket's own shutdown: a reader would then meet a socket without TLS.
            socket.socket.shutdown(link, socket.SHUT_RDWR)

    # The timeout of a socket is one of silence: who sends a byte now and then outlives it.
    timer = threading.Timer(timeout_s, expire)
    try:
        connection.connect()
        link = connection.sock
        timer.start()
        if endpoint.vet is not None:
            endpoint.vet(link, expired)
        if endpoint.tls:
            connection.sock = link = secure = _tls(link, endpoint.address)
            secure.do_handshake()  # here, where time may run out
        answer, data = _exchange(connection, endpoint.key, path, body, most)
    except Unanswered:
        raise
    except Exception as problem:  # http.client raises anything over a strange answer
        if not expired.is_set():
            text = _quoted(endpoint, str(problem) or type(problem).__name__)
            # Chained only for a limit of ours: another may quote the answer as it came.
            cause = problem if limits.reached(problem) else None
            raise Unanswered(f"{path}: {text}") from cause
    finally:
        timer.cancel()
        connection.close()
    if expired.is_set():
        raise Unanswered(f"{path}: no whole answer within {timeout_s:g} s")
    if len(data) > most:
        raise Unanswered(f"{path}: more than {most} bytes")
    if answer.length:  # of the announced bytes, those that did not come
        raise Unanswered(f"{path}: half an answer")
    return Answer(answer.status, data.decode("utf-8", "replace"))


def _exchange(
    connection: http.client.HTTPConnection,
    key: str,
    path: str,
    body: Mapping[str, Any] | None,
    most: int,
) -> tuple[http.client.HTTPResponse, bytes]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    if body is None:
        connection.request("GET", path, headers=headers)
    else:
        headers["Content-Type"] = "application/json"
        connection.request("POST", path, json.dumps(body), headers)
    answer = connection.getresponse()
    return answer, answer.read(most + 1)


def _tls(link: socket.socket, name: str) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(link, server_hostname=name, do_handshake_on_connect=False)


class _Metered(io.RawIOBase):
    """Reads `most` bytes at most: a chunk of size -1 is read to an end that may never come."""

    def __init__(self, link: socket.socket, most: int) -> None:
        self._raw, self._left = link.makefile("rb", buffering=0), most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._raw.readinto(buffer) or 0
        self._left -= count
        if self._left < 0:
            raise OSError("the answer does not end")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()

    def makefile(self, mode: str) -> io.BufferedReader:
        """This, where a socket is expected."""
        return io.BufferedReader(self)


def _response(most: int, link: socket.socket, **more: Any) -> http.client.HTTPResponse:
    return http.client.HTTPResponse(_Metered(link, most), **more)  # type: ignore[arg-type]


def _quoted(endpoint: Endpoint, text: str) -> str:
    """What somebody answered, as it may stand in a message: who has our key may send it back."""
    text = text.replace(endpoint.key, "[secret]") if endpoint.key else text
    return one_line(text[:QUOTED])


def pending_requests(endpoint: Endpoint, timeout_s: float) -> int | None:
    """Requests the server has accepted and not answered; None where it does not count them."""
    answer = call(endpoint, "/load", timeout_s, most=MAX_COUNT_BYTES)
    return _count(answer.body, "server_load") if answer.status == 200 else None


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
    path = "/v1/completions"
    answer = call(endpoint, path, timeout_s, body, most=MAX_COUNT_BYTES)
    said = _quoted(endpoint, answer.body)
    if answer.status != 200:
        raise Unanswered(f"{path}: HTTP {answer.status}: {said}")
    came = _count(answer.body, "usage", "completion_tokens")
    if came is None:
        raise Unanswered(f"{path}: an answer without usage: {said}")
    return came


def _count(text: str, *path: str) -> int | None:
    """The count that stands in a JSON text under these keys, None where there is none."""
    try:
        found = json.loads(text)
        for key in path:
            found = found[key]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    whole = isinstance(found, int) and not isinstance(found, bool)
    return found if whole and 0 <= found <= MAX_COUNT else None
