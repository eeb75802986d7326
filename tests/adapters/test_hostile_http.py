"""Whatever the engine's port returns, the daemon gets an HttpResponse or Unanswered."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.adapters.network import completions, http
from caovand.adapters.network.http import Endpoint, HttpResponse, Unanswered
from caovand.core.printable import one_line
from tests.examples import examples

KEY = "sk-hunter2"
LONG_S = 20.0


class Raw:
    """A server that sends `data` to whoever asks, and closes; `asked` is the last request."""

    def __init__(self) -> None:
        self.data = self.asked = b""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.endpoint = Endpoint("127.0.0.1", self._socket.getsockname()[1], KEY)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            with client, contextlib.suppress(OSError):
                self.asked = client.recv(1 << 16)
                client.sendall(self.data)
                client.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture(scope="module")
def raw() -> Iterator[Raw]:
    server = Raw()
    yield server
    server.close()


def whole(body: bytes, status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 " + status + b"\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n"
    return head + body


def chunked(*sizes_and_data: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"\r\n".join(sizes_and_data) + b"\r\n"


VALUES = [
    b"[" * 200_000, b'{"server_load":' * 50_000, b"1e999", b"-1e999", b"NaN", b"Infinity", b"-1",
    b"9" * 5000, b"9" * 900_000, b"true", b"null", b'"7"', b"7.0", b"[]", b"{}", b'{"a":1}',
    b"0." + b"0" * 100_000 + b"1", b"-0", b"\xff\xfe", b"\xef\xbb\xbf7", b"1e308", b"\x00",
    b"18446744073709551616", b'"\\ud800"', b"7 7", b"",
]  # fmt: skip
DOCUMENTS = [
    *VALUES,
    *(b'{"server_load": ' + value + b"}" for value in VALUES),
    *(b'{"usage": ' + value + b"}" for value in VALUES),
    *(b'{"usage": {"completion_tokens": ' + value + b"}}" for value in VALUES),
]
SIZES = [
    b"-1", b"-5", b"-ffffffffffffffff", b"ffffffffffffffffffff", b"NaN", b"1e999", b"0x5", b"+5",
    b" 5", b"5;a=b", b"", b"\x00", b"5" * 70_000,
]  # fmt: skip
HEADS = [
    b"HTTP/1.1 200 OK\r\nContent-Length: " + length + b"\r\n\r\nhello"
    for length in (*SIZES, b"5, 5", b"1e3", b"9" * 5000)
] + [
    b"HTTP/1.1 " + status + b"\r\n\r\n"
    for status in (b"-1", b"999 X", b"0", b"1e9", b"2" * 5000, b"", b"\xb2\xb0\xb0 OK", b"99")
] + [
    b"HTTP/1.1 100 Continue\r\n\r\n" * 500,
    b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    b"HTTP/0.9 200 OK\r\n\r\n",
    b"HTTP/9.9 200 OK\r\n\r\n",
    b"\r\n\r\n",
    b"\x00" * 100_000,
    b"A" * 200_000,
    b"HTTP/1.1 200 OK\r\n" + b"A" * 100_000,
    b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 5000 + b"\r\n",
    b"HTTP/1.1 200 OK\r\n: b\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nA\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n A: folded\r\n\r\n",
    b"HTTP/1.1 200 \xff\xfe\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\nzz",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Type: \xff; charset=\x00\r\n\r\n",
    b"HTTP/1.1 401 " + KEY.encode() + b"\r\nContent-Length: 10\r\n\r\n" + KEY.encode(),
    b"SSH-2.0-" + KEY.encode() + b"\r\n",
    b"\x16\x03\x01\x00\xa5" * 50,
]  # fmt: skip
CHUNKS = [
    *(chunked(size, b"hello", b"0", b"") for size in SIZES),
    chunked(b"5", b"hello", b"-1", b"x" * 100),
    chunked(b"5", b"hel"),
    chunked(b"5", b"hello", b"0", b"A: " + b"b" * 100_000),
    chunked(*[b"1", b"x"] * 20_000, b"0", b""),
    chunked(b"5", b"hello", b"0", *[b"A: b"] * 20_000),
]
HOSTILE = [*map(whole, DOCUMENTS), *HEADS, *CHUNKS]


def ask_everything(raw: Raw, data: bytes) -> list[str]:
    """Make each kind of call; the messages of those that were not answered."""
    raw.data = data
    said: list[str] = []
    for ask in (
        lambda: http.call(raw.endpoint, "/health", LONG_S),
        lambda: http.read_count(raw.endpoint, "/load", "server_load", LONG_S),
        lambda: completions.complete(raw.endpoint, "/v1/completions", "m", [1], 1, LONG_S),
    ):
        try:
            got = ask()
        except Unanswered as problem:
            said.append(str(problem))
        else:
            assert got is None or isinstance(got, HttpResponse) or (type(got) is int and got >= 0)
    return said


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_a_strange_answer_is_an_answer_or_none(raw: Raw, number: int) -> None:
    for text in ask_everything(raw, HOSTILE[number]):
        assert KEY not in text
        assert one_line(text) == text
        assert len(text) < 1000


PIECES = st.sampled_from([
    b"HTTP/1.1 200 OK", b"\r\n", b"\r\n\r\n", b"Content-Length: ", b"Transfer-Encoding: chunked",
    b"-1", b"5", b"0", b"ffffffff", b"hello", b"[[[[", b'{"server_load": 1e999}', b"\x00", b"\xff",
    b"Connection: close", b": ", b"HTTP/1.1 100 Continue", b'{"usage": {"completion_tokens": NaN}}',
    b"\x1b[31m",
])  # fmt: skip


@examples(300)
@given(st.lists(st.one_of(PIECES, st.binary(max_size=20)), max_size=12).map(b"".join))
def test_random_answers_end_so_too(raw: Raw, data: bytes) -> None:
    ask_everything(raw, data)
    ask_everything(raw, b"HTTP/1.1 200 OK\r\n" + data)
    ask_everything(raw, chunked(data))


@examples(200)
@given(st.binary(max_size=60))
def test_random_bodies_end_so_too(raw: Raw, data: bytes) -> None:
    for text in ask_everything(raw, whole(data)):
        assert one_line(text) == text


def test_a_chunk_of_less_than_nothing_is_not_read_for_ever(
    raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python would keep all that comes until the connection ends."""
    monkeypatch.setattr(http, "MAX_HEAD_BYTES", 1 << 16)
    raw.data = chunked(b"-1", b"x" * (4 << 20))
    with pytest.raises(Unanswered, match=r"/x: ."):
        http.call(raw.endpoint, "/x", LONG_S, max_bytes=1 << 16)


@pytest.mark.parametrize("key", ["a\r\nX: b", "a\nb", "ключ", "a\0b", "\udce8"])
def test_a_key_that_no_header_takes_is_not_repeated(raw: Raw, key: str) -> None:
    """Keys are checked where they come from; this is the last door."""
    endpoint = Endpoint("127.0.0.1", raw.endpoint.port, key)
    assert key not in repr(endpoint)
    raw.asked = b""
    with pytest.raises(Unanswered, match="cannot send the API key: it must be one line") as caught:
        http.call(endpoint, "/x", LONG_S)
    assert key not in str(caught.value)
    assert raw.asked == b""
