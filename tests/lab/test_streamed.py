"""Streamed completions: timing of pieces, and every way an answer can fail."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from caovand.adapters.network.http import Endpoint, Unanswered
from caovand.engines.common.task_probes import WORKS
from caovand.lab.streamed import BadStatus, Streams, choice
from tests.lab.completions_server import Completions, completions, streamed
from tests.patience import LIMIT_S

PATH = "/v1/completions"


@pytest.fixture
def server() -> Iterator[Completions]:
    with completions() as one:
        yield one


def streams(server: Completions, key: str = "") -> Streams:
    """Requests to it."""
    return Streams(Endpoint("127.0.0.1", server.port, key), PATH, "m")


def test_every_piece_has_its_time_and_the_tokens_are_the_engines(server: Completions) -> None:
    answers = streams(server, "k3y").at_once(["abcd" * 10, "x"], 6)
    assert [(a.prompt_tokens, a.tokens, len(a.pieces)) for a in answers] == [(11, 6, 3), (1, 6, 3)]
    for answer in answers:
        assert answer.sent < answer.pieces[0]
        assert list(answer.pieces) == sorted(answer.pieces)
    assert server.keys == ["Bearer k3y"] * 2
    assert {body["prompt"] for body in server.completions()} == {"abcd" * 10, "x"}
    for body in server.completions():
        assert (body["stream"], body["max_tokens"], body["model"]) == (True, 6, "m")


def test_a_text_to_embed_is_one_piece_of_one_token(server: Completions) -> None:
    server.embedding = [0.5, 0.25]
    endpoint = Endpoint("127.0.0.1", server.port)
    asking = Streams(endpoint, PATH, "m", work=WORKS["embed"])
    looks: list[tuple[int, int]] = []
    (answer,) = asking.at_once(["abcd"], 1, lambda *seen: looks.append(seen))
    assert (answer.prompt_tokens, answer.tokens, len(answer.pieces)) == (2, 1, 1)
    assert server.asked == [("/v1/embeddings", {"model": "m", "input": "abcd"})]
    assert looks[-1] == (1, 1)


def test_first_tokens_and_answers_are_seen_while_others_are_under_way(server: Completions) -> None:
    looks: list[tuple[int, int]] = []
    reached = {(1, 0): threading.Event(), (2, 1): threading.Event()}

    def look(*found: int) -> None:
        if found in reached:
            reached[found].set()
            looks.append(found)

    def events(body: dict[str, Any]) -> Iterator[str]:
        pieces = streamed(body)
        if body["prompt"] == "late":
            assert reached[1, 0].wait(LIMIT_S)
        yield next(pieces)
        assert reached[(2, 1) if body["prompt"] == "late" else (1, 0)].wait(LIMIT_S)
        yield from pieces

    server.events = events
    assert len(streams(server).at_once(["early", "late"], 4, look)) == 2
    assert list(dict.fromkeys(looks)) == [(1, 0), (2, 1)]


def test_comments_and_other_fields_are_no_pieces(server: Completions) -> None:
    server.events = lambda body: iter([": still here\n\n", "event: x\n", *streamed(body)])
    (answer,) = streams(server).at_once(["x"], 4)
    assert (answer.tokens, len(answer.pieces)) == (4, 2)


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([], "ended without its tokens"),
        (['data: {"choices": [{}]}\n\n', "data: [DONE]\n\n"], "ended without its tokens"),
        (["data: {\n\n"], "not a JSON object|not a JSON object"),
        (["data: []\n\n"], "not a JSON object"),
        (['data: {"error": {"message": "k3y is out of memory"}}\n\n'], r"\[secret\] is out of"),
        (['data: {"choices": [{}], "usage": {"prompt_tokens": -1}}\n\n'], "ended without"),
    ],
)
def test_an_answer_that_goes_wrong_is_a_sentence(
    server: Completions, events: list[str], text: str
) -> None:
    server.events = lambda body: iter(events)
    with pytest.raises(Unanswered, match=text):
        streams(server, "k3y").at_once(["x"], 2)


def test_a_refusal_has_its_status_and_ends_the_others_too(server: Completions) -> None:
    server.status = 401
    with pytest.raises(BadStatus, match="HTTP 401") as caught:
        streams(server).at_once(["x"] * 3, 2)
    assert caught.value.status == 401


def test_the_first_failure_ends_the_requests_that_would_go_on(server: Completions) -> None:
    """The others hang until they are ended: this test would not end either."""

    def events(body: dict[str, Any]) -> Iterator[str]:
        if body["prompt"] == "bad":
            assert server.hanging.wait(LIMIT_S)
            yield 'data: {"error": "it is bad"}\n\n'
        else:
            yield ": the beginning\n\n"
            server.hanging.set()
            server.let_go.wait()

    server.events = events
    with pytest.raises(Unanswered, match="it is bad"):
        streams(server).at_once(["good", "bad", "good"], 2)


def test_nobody_listens(server: Completions) -> None:
    nowhere = Streams(Endpoint("127.0.0.1", 1), PATH, "m")
    with pytest.raises(Unanswered, match="refused"):
        nowhere.at_once(["x"] * 3, 2)


def test_stopping_ends_requests_that_would_never_end(server: Completions) -> None:
    server.hangs = True
    asked = streams(server)
    caught: list[Exception] = []

    def ask() -> None:
        try:
            asked.at_once(["x"] * 2, 2)
        except Unanswered as problem:
            caught.append(problem)

    thread = threading.Thread(target=ask)
    thread.start()
    assert server.hanging.wait(LIMIT_S)
    asked.stop()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert caught
    with pytest.raises(Unanswered, match="stopped"):
        asked.at_once(["x"], 2)


def told(server: Completions, texts: list[str]) -> None:
    """Have it answer with these pieces."""
    usage = '{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 9}}'
    pieces = [f'{{"choices": [{{"text": "{text}"}}]}}' for text in texts]
    ended = '{"choices": [{"text": "", "finish_reason": "stop"}]}'
    server.events = lambda body: (f"data: {one}\n\n" for one in (*pieces, ended, usage, "[DONE]"))


def test_one_request_with_its_text_its_end_and_fields_of_its_own(server: Completions) -> None:
    told(server, ["one ", "two"])
    found = streams(server).ask("x", 9, temperature=0.8, ignore_eos=False)
    assert (found.text, found.finish) == ("one two", "stop")
    assert found.answered is not None
    assert (found.answered.prompt_tokens, found.answered.tokens) == (3, 9)
    (body,) = server.completions()
    assert (body["temperature"], body["ignore_eos"], body["stream"]) == (0.8, False, True)


def test_a_client_that_leaves_has_what_came_until_then(server: Completions) -> None:
    told(server, ["one ", "two ", "three"])
    one = streams(server)
    found = one.ask("x", 9, leave_after=2)
    assert (found.text, found.answered) == ("one two ", None)
    assert one.ask("x", 9, leave_after=9).answered is not None, "others are not ended by it"


def test_a_failure_of_one_request_ends_no_other(server: Completions) -> None:
    one = streams(server)
    server.status = 500
    with pytest.raises(BadStatus, match="HTTP 500"):
        one.ask("x", 2)
    with pytest.raises(BadStatus, match="HTTP 500"):
        one.complete("x", 2)
    server.status = 200
    assert one.ask("x", 2).answered is not None


def test_an_answer_in_one_piece(server: Completions) -> None:
    server.events = lambda body: iter(
        ['{"choices": ', '[{"text": "one", "finish_reason": "stop"}]}']
    )
    text = streams(server).complete("x", 4, logprobs=2)
    assert choice(json.loads(text)) == ("one", "stop")
    (body,) = server.completions()
    assert (body["stream"], body["logprobs"]) == (False, 2)
    assert "stream_options" not in body


@pytest.mark.parametrize(
    "document", [None, [], {}, {"choices": []}, {"choices": [7]}, {"choices": [{"text": 7}]}]
)
def test_what_has_no_choice_has_no_text(document: Any) -> None:
    assert choice(document) == ("", "")
