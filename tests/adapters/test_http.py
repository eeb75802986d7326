"""Talking to an engine that is slow, half dead, or no engine at all."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from caovand.adapters.network import http
from caovand.adapters.network.completions import complete
from caovand.adapters.network.http import (
    Endpoint,
    HttpResponse,
    Unanswered,
    call,
    read_count,
)
from caovand.core.engine.record import Upload
from tests.ports import free_port

Script = Callable[[socket.socket, bytes], None]


class Stub:
    """A server that does to each connection what its script says, with the request it read."""

    def __init__(self, script: Script) -> None:
        self.requests: list[bytes] = []
        self.closing = threading.Event()
        self._script = script
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.endpoint = Endpoint("127.0.0.1", self._socket.getsockname()[1])
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while not self.closing.is_set():
            with contextlib.suppress(OSError):
                client, _ = self._socket.accept()
                with client:
                    self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        text = b""
        while b"\r\n\r\n" not in text:
            more = client.recv(65536)
            if not more:
                return  # gone: to read on would be a loop without a pause
            text += more
        head, _, body = text.partition(b"\r\n\r\n")
        length = next(
            (int(h.split(b":")[1]) for h in head.split(b"\r\n") if b"ontent-Length" in h), 0
        )
        while len(body) < length:
            body += client.recv(65536)
        self.requests.append(head + b"\r\n\r\n" + body)
        self._script(client, self.requests[-1])

    def close(self) -> None:
        self.closing.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def serve() -> Iterator[Callable[[Script], Stub]]:
    stubs: list[Stub] = []

    def make(script: Script) -> Stub:
        stubs.append(Stub(script))
        return stubs[-1]

    yield make
    for stub in stubs:
        stub.close()


def answering(body: bytes, status: str = "200 OK") -> Script:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    return lambda client, request: client.sendall(head + body)


Serve = Callable[[Script], Stub]


def test_an_answer_is_status_and_text(serve: Serve) -> None:
    stub = serve(answering("Grüße".encode(), "404 Not Found"))
    assert call(stub.endpoint, "/x", 10) == HttpResponse(404, "Grüße")
    assert stub.requests[0].startswith(b"GET /x HTTP/1.1\r\n")
    assert b"Authorization" not in stub.requests[0]


def test_a_body_is_posted_as_json_with_the_key(serve: Serve) -> None:
    stub = serve(answering(b"{}"))
    call(Endpoint("127.0.0.1", stub.endpoint.port, "sk-1"), "/x", 10, {"a": [1]})
    head, _, body = stub.requests[0].partition(b"\r\n\r\n")
    assert json.loads(body) == {"a": [1]}
    assert b"Authorization: Bearer sk-1" in head
    assert b"Content-Type: application/json" in head


def test_a_form_is_posted_with_its_file(serve: Serve) -> None:
    stub = serve(answering(b"ok"))
    upload = Upload({"model": "m"}, "a.wav", b"RIFF\0\xff")
    assert call(stub.endpoint, "/v1/audio", 10, upload) == HttpResponse(200, "ok")
    head, _, body = stub.requests[0].partition(b"\r\n\r\n")
    kind = next(line for line in head.split(b"\r\n") if line.startswith(b"Content-Type"))
    model, file = message_from_bytes(kind + b"\r\n\r\n" + body).get_payload()
    assert model.get_param("name", header="content-disposition") == "model"
    assert model.get_payload() == "m"
    assert file.get_filename() == "a.wav"
    assert file.get_payload(decode=True) == b"RIFF\0\xff"


@pytest.mark.parametrize(
    ("host", "address"),
    [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("", "127.0.0.1"), ("10.0.0.1", "10.0.0.1")],
)
def test_an_engine_that_listens_everywhere_is_asked_on_the_loopback(
    host: str, address: str
) -> None:
    assert Endpoint(host, 8000).address == address


def test_an_engine_on_ipv6_is_reached() -> None:
    with contextlib.ExitStack() as stack:
        try:
            server = socket.create_server(("::1", 0), family=socket.AF_INET6)
        except OSError:
            pytest.skip("no IPv6 here")
        stack.enter_context(server)

        def serve() -> None:
            client, _ = server.accept()
            with client:
                client.recv(65536)
                answering(b"ok")(client, b"")

        thread = threading.Thread(target=serve)
        thread.start()
        assert call(Endpoint("::", server.getsockname()[1]), "/", 10).body == "ok"
        thread.join(30)


# -- no whole answer ---


def hang(stub_closing: threading.Event) -> None:
    stub_closing.wait(60)


def test_nobody_listens() -> None:
    with pytest.raises(Unanswered, match=r"/health: .*refused"):
        call(Endpoint("127.0.0.1", free_port()), "/health", 10)


def test_a_name_that_is_no_host_is_unanswered() -> None:
    with pytest.raises(Unanswered):
        call(Endpoint("a" * 70 + ".example", 8000), "/", 10)


SILENT = "/x: no complete answer within 0.3 s|timed out"


def within(seconds: float, endpoint: Endpoint, words: str) -> None:
    started = time.monotonic()
    with pytest.raises(Unanswered, match=words):
        call(endpoint, "/x", seconds)
    assert time.monotonic() - started < seconds + 60


def test_a_server_that_accepts_and_says_nothing(serve: Serve) -> None:
    stub = serve(lambda client, request: hang(stub.closing))
    within(0.3, stub.endpoint, SILENT)


def test_a_server_that_never_ends_its_part_of_tls(serve: Serve) -> None:
    stub = serve(lambda client, request: hang(stub.closing))
    within(0.3, replace(stub.endpoint, tls=True), SILENT)


def dripping(head: bytes, closing: threading.Event) -> Script:
    """A byte every now and then, for ever: no read of it ever times out."""

    def script(client: socket.socket, request: bytes) -> None:
        client.sendall(head)
        while not closing.wait(0.05):
            client.sendall(b"x")

    return script


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
    ],
)
def test_a_server_that_drips_for_ever(serve: Serve, head: bytes) -> None:
    closing = threading.Event()
    stub = serve(dripping(head, closing))
    try:
        within(0.3, stub.endpoint, "no complete answer within 0.3 s")
    finally:
        closing.set()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x16\x03\x01" * 20,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n",
    ],
)
def test_a_server_that_ends_early_or_speaks_otherwise(serve: Serve, sent: bytes) -> None:
    stub = serve(lambda client, request: client.sendall(sent))
    with pytest.raises(Unanswered, match=r"/x: ."):
        call(stub.endpoint, "/x", 10)


def test_an_answer_without_end_is_given_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_ANSWER_BYTES", 1 << 16)

    def flood(client: socket.socket, request: bytes) -> None:
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        with contextlib.suppress(OSError):
            while True:
                client.sendall(b"x" * 65536)

    with pytest.raises(Unanswered, match="more than 65536 bytes"):
        call(serve(flood).endpoint, "/x", 10)


# -- what is asked ---


@pytest.mark.parametrize(
    ("status", "body", "pending"),
    [
        ("200 OK", b'{"server_load": 3}', 3),
        ("404 Not Found", b'{"detail": "Not Found"}', None),
        ("200 OK", b"{}", None),
        ("200 OK", b"[]", None),
        ("200 OK", b"oops", None),
        ("200 OK", b'{"server_load": "many"}', None),
    ],
)
def test_pending_requests(serve: Serve, status: str, body: bytes, pending: int | None) -> None:
    assert (
        read_count(serve(answering(body, status)).endpoint, "/load", "server_load", 10) == pending
    )


def test_a_completion_asks_for_work_that_cannot_end_early(serve: Serve) -> None:
    stub = serve(answering(b'{"usage": {"completion_tokens": 8}}'))
    assert complete(stub.endpoint, "/v1/completions", "m", [1, 2], 8, 10) == 8
    body = json.loads(stub.requests[0].partition(b"\r\n\r\n")[2])
    assert body == {
        "model": "m", "prompt": [1, 2], "max_tokens": 8, "temperature": 0, "ignore_eos": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        ("500 Internal Server Error", b"EngineDeadError", "HTTP 500: EngineDeadError"),
        ("200 OK", b"{}", "the answer has no usage"),
        ("200 OK", b'{"usage": null}', "the answer has no usage"),
        ("200 OK", b"not json", "the answer has no usage: not json"),
    ],
)
def test_a_completion_that_is_none(serve: Serve, status: str, body: bytes, words: str) -> None:
    with pytest.raises(Unanswered, match=words):
        complete(serve(answering(body, status)).endpoint, "/v1/completions", "m", [1], 8, 10)


def test_an_engine_with_a_certificate_of_its_own_is_reached_over_tls(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj",
         "/CN=engine", "-keyout", str(key), "-out", str(certificate)],
        capture_output=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    class Healthy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing to print."""

    server = HTTPServer(("127.0.0.1", 0), Healthy)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        port = server.server_address[1]
        assert call(Endpoint("127.0.0.1", port, tls=True), "/health", 20).status == 200
        with pytest.raises(Unanswered):
            call(Endpoint("127.0.0.1", port), "/health", 20)
    finally:
        server.shutdown()
        server.server_close()
