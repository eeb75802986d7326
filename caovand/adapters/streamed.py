"""Streamed completions, asked for as clients do: when each piece of an answer came.

Bounded in silence and size, not in time: a long prompt may be read for many minutes. The other end
is not trusted: a request ends in an Answered, in Unanswered or in Refused.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from caovand.adapters.http import Endpoint, Unanswered, connected, count_in, quoted
from caovand.core.bench.record import Answered

SILENCE_S = 1800.0
MOST_LINE_BYTES = 1 << 20
MOST_LINES = 1 << 20
EVENT = b"data: "
LOOK_S = 0.1


class Refused(Unanswered):
    """The engine answered with an HTTP status that is no success."""

    def __init__(self, path: str, status: int, text: str) -> None:
        self.status = status
        super().__init__(f"{path}: HTTP {status}: {text}")


class Streams:
    """Completions of one model; `stop` ends all that are under way, from any thread."""

    def __init__(self, endpoint: Endpoint, path: str, model: str) -> None:
        self._endpoint, self._path, self._model = endpoint, path, model
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def at_once(self, prompts: Sequence[str], tokens: int) -> list[Answered]:
        """Send all prompts at the same time; their answers.

        Raises the first failure, which ends all others and makes every later call fail.
        """
        ready = threading.Barrier(len(prompts))
        answers: dict[int, Answered] = {}
        failures: list[Exception] = []

        def ask(place: int) -> None:
            try:
                answers[place] = self._asked(prompts[place], tokens, ready)
            except Exception as problem:
                failures.append(problem)
                ready.abort()
                self.stop()

        threads = [
            threading.Thread(target=ask, args=(place,), name=f"request-{place}")
            for place in range(len(prompts))
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(LOOK_S)  # in pieces, so that Ctrl-C gets through
        except BaseException:
            ready.abort()
            self.stop()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            raise
        if failures:
            raise failures[0]
        return [answers[place] for place in range(len(prompts))]

    def stop(self) -> None:
        """End the requests under way, and allow no others.

        The engine notices that their client is gone.
        """
        with self._lock:
            self._stopped = True
            for link in self._open:
                with contextlib.suppress(OSError):
                    # SSLSocket's own shutdown would leave a reader with a socket without TLS.
                    socket.socket.shutdown(link, socket.SHUT_RDWR)

    def _asked(self, prompt: str, tokens: int, ready: threading.Barrier) -> Answered:
        body = json.dumps({
            "model": self._model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        })  # fmt: skip
        try:
            with connected(self._endpoint, SILENCE_S) as connection, self._known(connection.sock):
                ready.wait()
                return self._exchange(connection, body)
        except (Unanswered, threading.BrokenBarrierError):
            raise
        except Exception as problem:  # http.client may raise anything on a malformed answer
            text = quoted(self._endpoint, str(problem) or type(problem).__name__)
            raise Unanswered(f"{self._path}: {text}") from None

    @contextlib.contextmanager
    def _known(self, link: socket.socket) -> Any:
        with self._lock:
            if self._stopped:
                raise Unanswered("stopped")
            self._open.add(link)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(link)

    def _exchange(self, connection: http.client.HTTPConnection, body: str) -> Answered:
        headers = {"Content-Type": "application/json"}
        if self._endpoint.key:
            headers["Authorization"] = f"Bearer {self._endpoint.key}"
        sent = time.monotonic()
        connection.request("POST", self._path, body, headers)
        answer = connection.getresponse()
        if answer.status != 200:
            text = answer.read(MOST_LINE_BYTES).decode("utf-8", "replace")
            raise Refused(self._path, answer.status, quoted(self._endpoint, text))
        return self._read(answer, sent)

    def _read(self, answer: http.client.HTTPResponse, sent: float) -> Answered:
        pieces: list[float] = []
        prompt_tokens = tokens = None
        for _ in range(MOST_LINES):
            line = answer.readline(MOST_LINE_BYTES)
            at = time.monotonic()
            if not line or line.strip() == EVENT + b"[DONE]":
                break
            if not line.startswith(EVENT):
                continue
            event = _event(line[len(EVENT) :])
            if event.get("error"):
                text = quoted(self._endpoint, json.dumps(event["error"]))
                raise Unanswered(f"{self._path}: {text}")
            if event.get("choices"):  # its text may be empty: half a character is no text yet
                pieces.append(at)
            if event.get("usage"):
                prompt_tokens = count_in(event, "usage", "prompt_tokens")
                tokens = count_in(event, "usage", "completion_tokens")
        if not pieces or prompt_tokens is None or not tokens:
            raise Unanswered(f"{self._path}: the answer ended without its tokens and their number")
        return Answered(sent, tuple(pieces), prompt_tokens, tokens)


def _event(data: bytes) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict):
        raise Unanswered("an event of the answer is not a JSON object")
    return event
