"""What completes an answer whose gateway died: one byte names it, and HTTP clients can read it."""

from __future__ import annotations

import http.client
import io
import json
from typing import Any

import pytest

from caovand.core.gateway.last_words import LAST_WORDS, NOTHING, Stage, mark
from caovand.core.gateway.protocol import Form

EVENTS = b"data: 1\n\n"


class Sent:
    """A connection on which these bytes came."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def read(data: bytes) -> tuple[http.client.HTTPResponse, bytes]:
    """The answer that a client reads; raises IncompleteRead if it lacks its end."""
    response = http.client.HTTPResponse(Sent(data))  # type: ignore[arg-type]
    response.begin()
    return response, response.read()


def message(form: Form, document: Any) -> str:
    return str(document["message"] if form is Form.RESPONSES else document["error"]["message"])


def test_a_mark_is_a_byte_that_means_one_thing() -> None:
    assert len(LAST_WORDS) == len(Stage) * len(Form)
    assert all(NOTHING < found < 256 for found in LAST_WORDS)


@pytest.mark.parametrize("form", Form)
def test_a_stream_in_chunks_gets_its_protocols_error_and_its_end(form: Form) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    begun = head + b"%x\r\n%b\r\n" % (len(EVENTS), EVENTS)
    _, body = read(begun + LAST_WORDS[mark(Stage.CHUNKED, form)])
    assert body.startswith(EVENTS)
    last = json.loads(body.split(b"data: ")[-1])
    assert "(Retry-After: 2 s)" in message(form, last)
    assert (b"event: error\n" in body) == (form is not Form.OPENAI)


@pytest.mark.parametrize("form", Form)
def test_a_stream_without_chunks_gets_the_event_alone(form: Form) -> None:
    words = LAST_WORDS[mark(Stage.UNFRAMED, form)]
    assert words.startswith((b"data: {", b"event: error\ndata: {"))
    assert words.endswith(b"}\n\n")


@pytest.mark.parametrize("form", Form)
def test_a_request_without_an_answer_gets_503(form: Form) -> None:
    response, body = read(LAST_WORDS[mark(Stage.UNANSWERED, form)])
    assert (response.status, response.headers["Retry-After"]) == (503, "2")
    assert response.headers["Connection"] == "close"
    assert "caovan's gateway died" in json.loads(body)["error"]["message"]
