"""Request completions as clients do, most of them streamed, and time each piece of an answer.

Silence and size are limited, but not the total time: reading a long prompt may take many minutes.
The server is untrusted: a request ends with a StreamedAnswer, Unanswered or BadStatus.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from caovand.adapters.network.completions import completion_body
from caovand.adapters.network.http import (
    MAX_ANSWER_BYTES,
    Endpoint,
    Unanswered,
    ask,
    count_in,
    open_connection,
    shut_down,
)
from caovand.core.engine.record import TaskRequest, Upload
from caovand.lab.core.bench.record import TimedAnswer

SILENCE_S = 1800.0
MAX_LINE_BYTES = 1 << 20
MAX_LINES = 1 << 20
EVENT = b"data: "
POLL_S = 0.1
OnProgress = Callable[[int, int], None]
T = TypeVar("T")


class BadStatus(Unanswered):
    """The engine answered with a non-2xx HTTP status."""

    def __init__(self, path: str, status: int, text: str) -> None:
        self.status = status
        super().__init__(f"{path}: HTTP {status}: {text}")


@dataclass(frozen=True)
class StreamedAnswer:
    """The result of a request: its text and why it ended; no `answered` if its client
    disconnected.
    """

    text: str
    finish: str
    answered: TimedAnswer | None


class Streams:
    """Completions of one model; `stop` ends all running ones, from any thread.

    An engine may be silent for `silence_s`. With `work`, the model generates no text: an answer is
    a single piece, and counts as one token.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        path: str,
        model: str,
        silence_s: float = SILENCE_S,
        work: TaskRequest | None = None,
    ) -> None:
        self._endpoint, self._model, self._work = endpoint, model, work
        self._path = work.path if work else path
        self._silence_s = silence_s
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def at_once(
        self,
        prompts: Sequence[str],
        tokens: int,
        on_progress: OnProgress = lambda first, answered: None,
    ) -> list[TimedAnswer]:
        """Send all prompts at once and return their answers.

        Meanwhile `on_progress` is called at least every POLL_S, and once all have ended, with the
        numbers of requests that have their first token and that are complete. Raises the first
        failure, which ends all others and makes every later call fail.
        """
        ready = threading.Barrier(len(prompts))
        answers: dict[int, TimedAnswer] = {}
        first: list[int] = []
        failures: list[Exception] = []

        def ask(place: int) -> None:
            try:
                begun = partial(first.append, place)
                answers[place] = self._asked(prompts[place], tokens, ready, begun)
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
                    thread.join(POLL_S)  # in short waits, so that Ctrl-C gets through
                    on_progress(len(first), len(answers))
            on_progress(len(first), len(answers))  # a thread may end before it is waited for
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
        """End the running requests, and allow no others.

        The engine notices that their client is gone.
        """
        with self._lock:
            self._stopped = True
            for link in self._open:
                shut_down(link)

    def ask(self, prompt: str, tokens: int, leave_after: int = 0, **more: Any) -> StreamedAnswer:
        """Request one answer; the client disconnects after `leave_after` pieces, 0 for never.

        `more` are fields of the request.
        """
        body = self._body(prompt, tokens, stream=True, **more)
        return self._request(body, lambda answer, sent: self._read(answer, sent, leave_after))

    def complete(self, prompt: str, tokens: int, **more: Any) -> str:
        """Request one answer without streaming; return its JSON."""

        def read(answer: http.client.HTTPResponse, _sent: float) -> str:
            data = answer.read(MAX_LINE_BYTES)
            if answer.length:
                raise Unanswered(f"{self._path}: the answer is incomplete")
            return data.decode("utf-8", "replace")

        return self._request(self._body(prompt, tokens, stream=False, **more), read)

    def _body(self, prompt: str, tokens: int, *, stream: bool, **more: Any) -> dict[str, Any]:
        usage = {"stream_options": {"include_usage": True}} if stream else {}
        return completion_body(self._model, prompt, tokens, stream=stream, **usage, **more)

    def _asked(
        self, prompt: str, tokens: int, ready: threading.Barrier, begun: Callable[[], None]
    ) -> TimedAnswer:
        if self._work is not None:
            work_body = self._work.body(self._model, prompt)
            return self._request(work_body, partial(self._read_whole, begun=begun), ready)
        body = self._body(prompt, tokens, stream=True)
        exchange = self._request(
            body, lambda answer, sent: self._read(answer, sent, 0, begun), ready
        )
        assert exchange.answered is not None
        return exchange.answered

    def _request(
        self,
        body: Mapping[str, Any] | Upload,
        read: Callable[[http.client.HTTPResponse, float], T],
        ready: threading.Barrier | None = None,
    ) -> T:
        """Send a request, once all are `ready`, and read the answer."""
        with open_connection(self._endpoint, self._path, self._silence_s) as connection:
            link = connection.sock
            with self._lock:
                if self._stopped:
                    raise Unanswered("stopped")
                self._open.add(link)
            try:
                if ready is not None:
                    ready.wait()
                return self._exchange(connection, body, read)
            finally:
                with self._lock:
                    self._open.discard(link)
        raise AssertionError("open_connection() swallowed an exception")  # it never does: for mypy

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        body: Mapping[str, Any] | Upload,
        read: Callable[[http.client.HTTPResponse, float], T],
    ) -> T:
        sent = time.monotonic()
        answer = ask(connection, self._endpoint, self._path, body)
        if answer.status != 200:
            text = answer.read(MAX_LINE_BYTES).decode("utf-8", "replace")
            raise BadStatus(self._path, answer.status, self._endpoint.redact(text))
        return read(answer, sent)

    def _read_whole(
        self, answer: http.client.HTTPResponse, sent: float, begun: Callable[[], None]
    ) -> TimedAnswer:
        data = answer.read(MAX_ANSWER_BYTES)
        at = time.monotonic()
        prompt_tokens = count_in(_event(data), "usage", "prompt_tokens")
        if answer.length or prompt_tokens is None:
            raise Unanswered(f"{self._path}: the answer has no token count")
        begun()
        return TimedAnswer(sent, (at,), prompt_tokens, 1)

    def _read(
        self,
        answer: http.client.HTTPResponse,
        sent: float,
        leave_after: int,
        begun: Callable[[], None] = lambda: None,
    ) -> StreamedAnswer:
        pieces: list[float] = []
        texts: list[str] = []
        finish = ""
        prompt_tokens = tokens = None
        for _ in range(MAX_LINES):
            line = answer.readline(MAX_LINE_BYTES)
            at = time.monotonic()
            if not line or line.strip() == EVENT + b"[DONE]":
                break
            if not line.startswith(EVENT):
                continue
            event = _event(line[len(EVENT) :])
            if event.get("error"):
                text = self._endpoint.redact(json.dumps(event["error"]))
                raise Unanswered(f"{self._path}: {text}")
            if event.get("choices"):  # its text may be empty while a character is incomplete
                pieces.append(at)
                if len(pieces) == 1:
                    begun()
                text, reason = choice(event)
                texts.append(text)
                finish = reason or finish
                if len(pieces) == leave_after:
                    return StreamedAnswer("".join(texts), finish, None)
            if event.get("usage"):
                prompt_tokens = count_in(event, "usage", "prompt_tokens")
                tokens = count_in(event, "usage", "completion_tokens")
        if not pieces or prompt_tokens is None or not tokens:
            raise Unanswered(f"{self._path}: the answer ended without its tokens or their count")
        answered = TimedAnswer(sent, tuple(pieces), prompt_tokens, tokens)
        return StreamedAnswer("".join(texts), finish, answered)


def choice(document: Any) -> tuple[str, str]:
    """The first choice's text in a completion or a piece of one, and why it ended."""
    try:
        choice = document["choices"][0]
        text, finish = choice.get("text"), choice.get("finish_reason")
    except (LookupError, TypeError, AttributeError):
        return "", ""
    return text if isinstance(text, str) else "", finish if isinstance(finish, str) else ""


def _event(data: bytes) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict):
        raise Unanswered("an event of the answer is not a JSON object")
    return event
