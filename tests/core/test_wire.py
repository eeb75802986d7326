"""The control protocol: messages survive the round trip, and no input does harm."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from caovand.core.reporting import wire
from caovand.core.reporting.wire import MAX_BYTES, Notice, Reply, Request, WireError
from tests.examples import examples

DECODERS = [wire.decode_request, wire.decode_reply, wire.decode_notice]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=64)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=4)
NAMES = ["v", "id", "op", "args", "ok", "result", "error", "seq", "at", "kind", "text", "data"]
ODD = JSON | st.floats() | st.just(10**400) | st.sampled_from([1, "", {}, True])


def survives(decode: Callable[[bytes], Any], frame: bytes) -> None:
    try:
        decode(frame)
    except WireError as problem:
        refusal = problem
    else:
        return
    assert refusal.code
    assert 0 < len(refusal.message) < 1000
    assert len(refusal.id) <= 64


@pytest.mark.parametrize("decode", DECODERS)
@given(st.binary(max_size=300))
@example(b"[" * 60_000)
@example(b'{"v":' + b"[" * 30_000 + b"]" * 30_000 + b"}")
@example(b"9" * 60_000)
@example(b"\xff\xfe{\x00}")
@example(b'"\\ud800"')
@example(b'{"v":"' + b"x" * 60_000 + b'"}')
@example(b'{"v":1,"ok":false,"error":"no object"}')
@example(b'{"v":1,"ok":true,"result":[]}')
@example(b'{"v":1,"ok":true,"result":null}')
@example(b'{"seq":Infinity,"at":0,"kind":"","text":"","data":{}}')
@example(b'{"seq":1,"at":1' + b"0" * 400 + b',"kind":"","text":"","data":{}}')
def test_arbitrary_bytes_raise_nothing_but_a_wire_error(
    decode: Callable[[bytes], Any], frame: bytes
) -> None:
    survives(decode, frame)


@pytest.mark.parametrize("decode", DECODERS)
@given(st.dictionaries(st.sampled_from(NAMES), ODD))
@examples(200)
def test_documents_that_are_nearly_right_raise_nothing_but_a_wire_error(
    decode: Callable[[bytes], Any], document: dict[str, Any]
) -> None:
    survives(decode, json.dumps({"v": 1, **document}).encode())


@given(TEXT, OBJECTS, TEXT, TEXT)
def test_a_request_comes_out_as_it_went_in(
    op: str, args: dict[str, Any], id: str, model: str
) -> None:
    request = Request(op, args, id, model=model)
    assert wire.decode_request(wire.encode_request(request)) == request


@given(TEXT, OBJECTS)
def test_a_result_comes_out_as_it_went_in(id: str, result: dict[str, Any]) -> None:
    reply = wire.decode_reply(wire.encode_reply(Reply(id, result)))
    assert (reply.ok, reply.id, reply.result) == (True, id, result)


@given(TEXT, TEXT, TEXT, TEXT)
def test_an_error_comes_out_as_it_went_in(id: str, code: str, message: str, hint: str) -> None:
    reply = Reply(id, None, code, message, hint)
    assert wire.decode_reply(wire.encode_reply(reply)) == reply
    assert not reply.ok


@given(st.integers(1), st.floats(0, 1e12), TEXT, TEXT, OBJECTS)
def test_a_notice_comes_out_as_it_went_in(
    seq: int, at: float, kind: str, text: str, data: dict[str, Any]
) -> None:
    notice = Notice(seq, at, kind, text, data)
    assert wire.decode_notice(wire.encode_notice(notice)) == notice


def test_a_frame_of_the_greatest_size_is_read_and_one_byte_more_is_not() -> None:
    frame = wire.encode_request(Request("status"))
    wire.decode_request(frame + b" " * (MAX_BYTES - len(frame)))
    with pytest.raises(WireError) as caught:
        wire.decode_request(frame + b" " * (MAX_BYTES - len(frame) + 1))
    assert caught.value.code == "too-large"


def test_an_id_has_at_most_64_characters() -> None:
    wire.decode_request(wire.encode_request(Request("status", id="x" * 64)))
    with pytest.raises(WireError):
        wire.decode_request(wire.encode_request(Request("status", id="x" * 65)))


def test_another_version_is_refused_under_the_id_of_the_request() -> None:
    with pytest.raises(WireError) as caught:
        wire.decode_request(b'{"v":2,"id":"a","op":"status","args":{}}')
    assert (caught.value.code, caught.value.id) == ("bad-version", "a")


@pytest.mark.parametrize(
    "frame",
    [
        b"", b"null", b"[]", b"1", b'"status"', b"{}", b'{"v":1}', b'{"v":1,"op":1}',
        b'{"v":1,"op":"status","args":[]}', b'{"v":1,"op":"status","id":1}', b'{"v":1,"op":null}',
        b'{"v":1,"op":"status","args":{}', b'{"v":true,"op":"status"}',
        b'{"v":1,"op":"status","model":1}', b'{"v":1,"op":"status","model":null}',
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused(frame: bytes) -> None:
    with pytest.raises(WireError):
        wire.decode_request(frame)


def test_args_and_id_may_be_left_out() -> None:
    assert wire.decode_request(b'{"v":1,"op":"status"}') == Request("status")


def test_a_lone_surrogate_does_not_keep_a_reply_from_being_sent() -> None:
    assert b"?" in wire.encode_reply(Reply("\ud800", code="x", message="y"))
