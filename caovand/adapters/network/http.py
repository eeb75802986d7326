"""HTTP requests to servers on this machine: bounded in time and size, one connection per request.

The server is not trusted: whatever it sends, a call ends in an HttpResponse or in Unanswered. Hubs
on the internet need proxies, certificates and redirects: `model_pull.client` leaves those to
requests.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from caovand.core import api_key, limits
from caovand.core.addresses import join_address
from caovand.core.document import is_whole
from caovand.core.engine.record import Upload

MAX_ANSWER_BYTES = 8 << 20
MAX_COUNT_BYTES = 1 << 20  # the largest answer that is searched for a number
MAX_HEAD_BYTES = 1 << 20
MAX_COUNT = 1 << 53
BOUNDARY = "caovan-3f9a1c77d0"  # separates a form's parts; no name or sound contains it


class Unanswered(Exception):
    """No complete answer: refused, reset, timed out or too large."""


class Stranger(Unanswered):
    """A process other than the engine has the port; nothing was sent."""


@dataclass(frozen=True)
class HttpResponse:
    """An HTTP answer with its body as text."""

    status: int
    body: str


Vet = Callable[[socket.socket, threading.Event], None]
"""Check which process is at the other end of a connection, until the event is set; raises
Stranger."""


@dataclass(frozen=True)
class Endpoint:
    """The address of a server; `key` is the API key that it requires, "" if there is none.

    With `tls` its certificate is not checked: before anything is sent, `vet` makes sure that the
    other end is our own child.
    """

    host: str
    port: int
    key: str = field(default="", repr=False)
    tls: bool = False
    vet: Vet | None = field(default=None, repr=False, compare=False)

    @property
    def address(self) -> str:
        """The host to connect to: loopback if the engine listens on every address."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)

    @property
    def url(self) -> str:
        """The URL to which paths are appended."""
        return f"http{'s' * self.tls}://{join_address(self.address, self.port)}"

    def redact(self, text: str) -> str:
        """Remove the API key from an answer, so that a message can quote it."""
        return api_key.redact(self.key, text)


def call(
    endpoint: Endpoint,
    path: str,
    timeout_s: float,
    body: Mapping[str, Any] | Upload | None = None,
    max_bytes: int | None = None,
) -> HttpResponse:
    """GET `path`, or POST `body`, with an answer of at most `max_bytes`; raises Unanswered."""
    limit = max_bytes or MAX_ANSWER_BYTES
    with open_connection(
        endpoint, path, timeout_s, within_s=timeout_s, max_bytes=limit + MAX_HEAD_BYTES
    ) as connection:
        answer = ask(connection, endpoint, path, body)
        data = answer.read(limit + 1)
    if len(data) > limit:
        raise Unanswered(f"{path}: more than {limit} bytes")
    if answer.length:  # announced bytes that never arrived
        raise Unanswered(f"{path}: an incomplete answer")
    return HttpResponse(answer.status, data.decode("utf-8", "replace"))


@contextlib.contextmanager
def open_connection(
    endpoint: Endpoint,
    path: str,
    silence_s: float,
    *,
    within_s: float | None = None,
    max_bytes: int | None = None,
) -> Iterator[http.client.HTTPConnection]:
    """Connect in order to request `path`; every failure of the block is raised as Unanswered.

    The server may be silent for `silence_s`. The connection is cut after `within_s`, and after
    `max_bytes`.
    """
    if endpoint.key and not api_key.is_usable(endpoint.key):
        raise Unanswered(f"{path}: cannot send the API key: it {api_key.RULE}")
    connection = http.client.HTTPConnection(endpoint.address, endpoint.port, timeout=silence_s)
    if max_bytes is not None:
        connection.response_class = partial(_response, max_bytes)  # type: ignore[assignment]
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        shut_down(link)

    # A socket's timeout only limits silence: a peer that trickles bytes would outlast it.
    timer = threading.Timer(within_s, expire) if within_s is not None else None
    try:
        connection.connect()
        link = connection.sock
        if timer is not None:
            timer.start()
        if endpoint.vet is not None:
            endpoint.vet(link, expired)
        if endpoint.tls:
            connection.sock = link = secure = _tls(link, endpoint.address)
            secure.do_handshake()  # here, where the timer applies
        yield connection
    except Unanswered:
        raise
    except Exception as problem:  # http.client may raise anything on a malformed answer
        if not expired.is_set() or limits.limit_reached(problem):
            text = endpoint.redact(str(problem) or type(problem).__name__)
            # Chained only if we hit our own limit: other exceptions may quote the answer verbatim.
            cause = problem if limits.limit_reached(problem) else None
            raise Unanswered(f"{path}: {text}") from cause
    finally:
        if timer is not None:
            timer.cancel()
        connection.close()
    if expired.is_set():
        raise Unanswered(f"{path}: no complete answer within {within_s:g} s")


def ask(
    connection: http.client.HTTPConnection,
    endpoint: Endpoint,
    path: str,
    body: Mapping[str, Any] | Upload | None = None,
) -> http.client.HTTPResponse:
    """GET `path`, or POST `body`, as JSON unless it is a form; the caller reads the answer."""
    headers = api_key.bearer_headers(endpoint.key)
    if body is None:
        connection.request("GET", path, headers=headers)
    elif isinstance(body, Upload):
        headers["Content-Type"] = f"multipart/form-data; boundary={BOUNDARY}"
        connection.request("POST", path, _encode_form(body), headers)
    else:
        headers["Content-Type"] = "application/json"
        connection.request("POST", path, json.dumps(body), headers)
    return connection.getresponse()


def _encode_form(body: Upload) -> bytes:
    begin = f"--{BOUNDARY}\r\nContent-Disposition: form-data; name="
    fields = [f'{begin}"{name}"\r\n\r\n{value}\r\n' for name, value in body.fields.items()]
    file = f'{begin}"file"; filename="{body.file}"\r\n\r\n'
    return "".join((*fields, file)).encode() + body.data + f"\r\n--{BOUNDARY}--\r\n".encode()


def shut_down(link: socket.socket) -> None:
    """End a connection that another thread is reading."""
    with contextlib.suppress(OSError):
        # SSLSocket's own shutdown would leave the reader with a socket without TLS.
        socket.socket.shutdown(link, socket.SHUT_RDWR)


def _tls(link: socket.socket, name: str) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(link, server_hostname=name, do_handshake_on_connect=False)


class _Metered(io.RawIOBase):
    """Read at most `max_bytes`: http.client reads a chunk of size -1 until it ends, if ever."""

    def __init__(self, link: socket.socket, max_bytes: int) -> None:
        self._raw, self._left = link.makefile("rb", buffering=0), max_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._raw.readinto(buffer) or 0
        self._left -= count
        if self._left < 0:
            raise OSError("the answer is incomplete")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return this object itself, as http.client expects of a socket."""
        return io.BufferedReader(self)


def _response(max_bytes: int, link: socket.socket, **more: Any) -> http.client.HTTPResponse:
    return http.client.HTTPResponse(_Metered(link, max_bytes), **more)  # type: ignore[arg-type]


def read_count(endpoint: Endpoint, path: str, key: str, timeout_s: float) -> int | None:
    """Read the count under `key` in the JSON answer at `path`; None if there is none."""
    answer = call(endpoint, path, timeout_s, max_bytes=MAX_COUNT_BYTES)
    return read_count_in(answer.body, key) if answer.status == 200 else None


def read_count_in(text: str, *path: str) -> int | None:
    """Find the count under these keys in a JSON text; None if there is none."""
    try:
        return count_in(json.loads(text), *path)
    except (ValueError, RecursionError):
        return None


def count_in(document: Any, *path: str) -> int | None:
    """Find the count under these keys in a JSON document; None if there is none."""
    try:
        for key in path:
            document = document[key]
    except (LookupError, TypeError):
        return None
    return document if is_whole(document, 0, MAX_COUNT) else None
