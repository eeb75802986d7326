"""Request bodies as the gateway parses them, and its error responses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.gateway import protocol
from caovand.core.gateway.body import MAX_NAME_BYTES, STEPS, Fields, fields
from caovand.core.gateway.events import Why
from caovand.core.gateway.protocol import Form

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
names = st.sampled_from(["model", "stream", "messages", 'a"b', "\\", "max_tokens"])


def read(body: bytes) -> Fields:
    return [*fields(body)][-1]


@given(st.dictionaries(names, values), st.booleans())
def test_the_fields_are_those_that_a_parser_finds(body: dict[str, Any], ascii_only: bool) -> None:
    found = read(json.dumps(body, ensure_ascii=ascii_only, indent=1).encode())
    model = body.get("model")
    assert found.model == (model if isinstance(model, str) else None)
    assert found.stream == (body.get("stream") is True)
    assert found.names == tuple(sorted(body))


@given(st.binary(max_size=60))
def test_what_is_no_json_is_nobody_s_fault(body: bytes) -> None:
    read(body)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model": "a", "model": "b"}', "b"),
        (b'{"messages": [{"model": "inner"}], "x": {"model": "inner"}}', None),
        (b'{"mod\\u0065l": "escaped"}', "escaped"),
        (b'{"x": "model", "y": "a"}', None),
        (b'{"model": 7, "user": "a"}', None),
        (b'{"model": "%s"}' % (b"a" * (MAX_NAME_BYTES + 1)), None),
        (b'{"model": "\\\\", "user": "a"}', "\\"),
        (b"[" * 100_000, None),
        (b"", None),
    ],
)
def test_where_parsers_could_differ(body: bytes, expected: str | None) -> None:
    assert read(body).model == expected


def test_a_long_body_is_read_with_pauses() -> None:
    assert len(list(fields(b'{"messages": [' + b'"",' * (3 * STEPS) + b"]}"))) == 3 + 1
    assert len(list(fields(b"[" * (3 * STEPS)))) == 1, "a run of brackets is one step"
    assert len(list(fields(b'{"prompt": "' + b'\\"' * (3 * STEPS) + b'"}'))) == 3 + 1


@pytest.mark.parametrize("count", [0, 1, 2, 127, 128, 129, 256, 257, 10_000])
def test_a_string_ends_where_a_parser_ends_it_however_many_backslashes_it_has(count: int) -> None:
    text = "\\" * count + '", "model": "other'
    assert read(json.dumps({"prompt": text, "model": "mine"}).encode()).model == "mine"


def test_each_form_has_its_errors() -> None:
    fault = protocol.fault_of(Why.TOO_LONG, 9)
    openai = protocol.document(Form.OPENAI, fault)["error"]
    assert (openai["type"], openai["code"]) == ("server_error", "waited_too_long")
    assert openai["message"].endswith("send it again later (Retry-After: 9 s)")
    anthropic = protocol.document(Form.ANTHROPIC, fault)
    assert (anthropic["type"], anthropic["error"]["type"]) == ("error", "overloaded_error")
    assert protocol.error_event(Form.OPENAI, fault).startswith(b'data: {"error": ')
    assert protocol.error_event(Form.ANTHROPIC, fault).startswith(b"event: error\ndata: ")
    both = json.loads(protocol.error_event(Form.RESPONSES, fault).split(b"data: ")[1])
    assert both["type"] == "error"
    assert both["error"]["message"] == both["message"]


@pytest.mark.parametrize("why", Why)
def test_every_reason_has_an_error_with_a_remedy(why: Why) -> None:
    fault = protocol.fault_of(why, None)
    assert 400 <= fault.status < 600
    assert fault.problem.remedy


@given(st.text())
def test_no_name_of_a_model_begins_another_event(name: str) -> None:
    fault = protocol.unknown_model(name, ["a", name])
    for form in Form:
        event = protocol.error_event(form, fault)
        lines = event.removeprefix(b"event: error\n").split(b"\n")
        assert [line[:6] for line in lines] == [b"data: ", b"", b""]
        assert b"\r" not in event
    assert protocol.comment(name).count(b"\n") == 2
    assert b"\r" not in protocol.comment(name)


def test_the_list_of_models_is_for_clients_of_both() -> None:
    found = protocol.models(["a", "b"], 4096, "starting", 12.4)
    assert (found["object"], found["first_id"], found["last_id"]) == ("list", "a", "b")
    (first, _) = found["data"]
    assert (first["object"], first["type"], first["max_model_len"]) == ("model", "model", 4096)
    assert (first["state"], first["expected_s"]) == ("starting", 12)
    assert protocol.models([], None, "gone", None)["data"] == []


@pytest.mark.parametrize(
    ("chunk", "fresh", "place"),
    [
        (b'data: {"error": {"message": "no"}}\n\n', True, 0),
        (b"event: error\ndata: {}\n\n", True, 0),
        (b'data: {"error": 1}', False, -1),
        (b'data: {"a": 1}\n\ndata: {"error": 1}\n\n', True, 16),
        (b'rest\n\nevent: error\ndata: {}\n\ndata: {"error": 1}', False, 6),
        (b'data: {"text": "\\n\\ndata: {\\"error\\"', True, -1),
    ],
)
def test_an_error_event_of_an_engine_is_found_wherever_it_begins(
    chunk: bytes, fresh: bool, place: int
) -> None:
    assert protocol.error_at(chunk, fresh=fresh) == place


@pytest.mark.parametrize(
    ("chunk", "is_one"),
    [
        (b": keep-alive\n\n", True),
        (b": one\r\n\r\n: two\n\n", True),
        (b"", False),
        (b"data: 1\n\n", False),
        (b": one\n\ndata: 1\n\n", False),
    ],
)
def test_comments_of_an_engine_are_no_answer(chunk: bytes, is_one: bool) -> None:
    assert protocol.is_comment(chunk) is is_one
