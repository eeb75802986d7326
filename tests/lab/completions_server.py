"""An engine's HTTP side in a thread: streamed completions and a tokenizer of four letters each."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Completions(ThreadingHTTPServer):
    """`events` are sent for a completion, made from its request; `asked` are all requests.

    `embedding` is what is sent for any text to embed.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.keys: list[str | None] = []
        self.status = 200
        self.events = streamed
        self.embedding: list[Any] = []
        self.hanging = threading.Event()
        self.hangs = False
        self.let_go = threading.Event()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])

    def completions(self) -> list[dict[str, Any]]:
        """The bodies of the completions asked for."""
        return [body for path, body in self.asked if path == "/v1/completions"]


def tokens_of(text: str | list[int]) -> int:
    """The tokens of a text; of a list of them their number."""
    return 1 + len(text) // 4 if isinstance(text, str) else len(text)


def streamed(body: dict[str, Any]) -> Iterator[str]:
    """A piece for two tokens, as drafting makes them, then the usage."""
    for _ in range((body["max_tokens"] + 1) // 2):
        yield 'data: {"choices": [{"text": ""}]}\n\n'
    count = {"prompt_tokens": tokens_of(body["prompt"]), "completion_tokens": body["max_tokens"]}
    yield f"data: {json.dumps({'choices': [], 'usage': count})}\n\n"
    yield "data: [DONE]\n\n"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Completions

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body))
        self.server.keys.append(self.headers["Authorization"])
        if self.server.status != 200:
            self._whole({"error": "no"}, self.server.status)
        elif self.path == "/v1/embeddings":
            usage = {"prompt_tokens": tokens_of(body["input"])}
            self._whole({"data": [{"embedding": self.server.embedding}], "usage": usage})
        elif self.path == "/tokenize":
            self._whole({"count": tokens_of(body["prompt"])})
        else:
            self._stream(body)

    def _whole(self, document: Any, status: int = 200) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in self.server.events(body):
            data = event.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            if self.server.hangs:
                self.server.hanging.set()
                self.server.let_go.wait()
                self.close_connection = True
                return
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: Any) -> None:
        """Silent."""


@contextmanager
def completions() -> Iterator[Completions]:
    """A listening one."""
    server = Completions()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.let_go.set()
        server.shutdown()
        thread.join()
        server.server_close()
