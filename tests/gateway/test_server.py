"""The gateway's responses over a real connection: forwarded, waiting, ended, refused."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from caovand.core.gateway import policy
from caovand.gateway import application, connections, desk, exchange, server
from tests.bench import streams
from tests.gateway.world import (
    CHAT,
    HELLO,
    LIMITS,
    STREAMED,
    FakeEngine,
    World,
    events,
    for_ever,
    last_event,
    whole,
    world,
)
from tests.patience import LIMIT_S, soon, turns


def run(folder: Path, test: Callable[[World], Awaitable[None]], **says: Any) -> None:
    async def all_of_it() -> None:
        async with world(folder, **says) as one:
            await asyncio.wait_for(test(one), LIMIT_S)

    asyncio.run(all_of_it())


# -- passed on ---


def test_requests_and_answers_pass_unchanged(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        body = b'{"model": "tiny",  "prompt": "\xc3\xa4"}'
        sent = {"Content-Type": "application/json", "X-Mine": "7", "User-Agent": "me"}
        async with one.session.post(
            f"{one.url}/v1/completions?a=b%20c", data=body, headers=sent
        ) as got:
            assert got.status == 200
            assert got.headers["X-Engine"] == "1"
            assert await got.json() == {"choices": [{"text": "hi"}]}
        method, path, headers, seen = one.engine.asked[0]
        assert (method, path, seen) == ("POST", "/v1/completions?a=b%20c", body)
        ours = {"Host", "Connection", "Accept", "Accept-Encoding"}
        assert {name: value for name, value in headers.items() if name not in ours} == {
            **sent, "Content-Length": str(len(body)),
        }  # fmt: skip
        for path in ("/v1/messages", "/v1/responses", "/tokenize", "/v1/audio/transcriptions"):
            assert (await one.post(path, data=b"x"))[0] == 200
            assert one.engine.asked[-1][1] == path

        async def teapot(request: web.Request) -> web.Response:
            return web.json_response({"error": {"message": "no"}}, status=400)

        one.engine.answer = teapot
        assert await one.post() == (400, {"error": {"message": "no"}})

    run(tmp_path, test)


def test_a_stream_comes_chunk_by_chunk(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        go_on = asyncio.Event()
        one.engine.answer = events("one", "two", then=go_on.wait)
        async with one.session.post(one.url + CHAT, json=STREAMED) as got:
            seen = b""
            while b"two" not in seen:
                seen += await got.content.readany()
            assert seen == b"data: one\n\ndata: two\n\n"
            go_on.set()
            assert await got.content.read() == b"data: [DONE]\n\n"

    run(tmp_path, test)


def test_an_answer_that_is_there_at_once_is_passed_on_with_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wake_the_client_once_more(response: web.StreamResponse, data: bytes) -> None:
        raise AssertionError

    monkeypatch.setattr(exchange._Response, "write", wake_the_client_once_more)

    async def test(one: World) -> None:
        assert await one.post() == (200, {"choices": [{"text": "hi"}]})

    run(tmp_path, test)


def test_an_engine_that_closes_connections_it_had_promised_to_keep_loses_no_request(
    tmp_path: Path,
) -> None:
    engines: list[FakeEngine] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if engines[0].peers.count(request.transport) > 1:  # as llama.cpp after a stream
            assert request.transport is not None
            request.transport.abort()
        return await events("one")(request)

    async def test(one: World) -> None:
        engines.append(one.engine)
        one.engine.answer = answer
        for number in range(1, 4):
            assert (await one.post(json=STREAMED))[0] == 200
            assert len(one.engine.asked) == number

    run(tmp_path, test)


def test_a_client_that_goes_ends_its_request_at_the_engine(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        for begins in (True, False):
            one.engine.answer = events("one", then=for_ever) if begins else for_ever
            asked, left = len(one.engine.asked), one.engine.left
            got = asyncio.ensure_future(one.session.post(one.url + CHAT, json=STREAMED))
            await soon(lambda asked=asked: len(one.engine.asked) > asked)
            if begins:
                (await got).close()
            else:
                got.cancel()
            await soon(lambda left=left: one.engine.left == left + 1)
        await soon(lambda: one.daemon.reports and one.daemon.reports[-1]["at_engine"] == 0)

    run(tmp_path, test)


def test_a_client_that_left_before_its_request_was_read_is_no_fault(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def reads(request: web.Request) -> web.Response:
        raise RuntimeError("Connection closed.")  # the library's, for the body of such a request

    async def test(one: World) -> None:
        gone = web.Request.__new__(web.Request)
        gone._protocol = SimpleNamespace(transport=None)  # type: ignore[assignment]
        with pytest.raises(ConnectionResetError):
            await application.Gateway(
                one.gateway.desk, one.gateway.upstream, one.gateway.connections
            )._rules(gone, reads)

    run(tmp_path, test)
    assert capfd.readouterr().err == ""


def test_the_key_is_the_servers_in_either_form(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        status, found = await one.post(json=HELLO)
        assert (status, found["error"]["code"]) == (401, "invalid_api_key")
        status, found = await one.post("/v1/messages", json=HELLO)
        assert (status, found["error"]["type"]) == (401, "authentication_error")
        assert (await one.get("/v1/models"))[0] == 401
        assert (await one.get("/health"))[0] == 200
        assert one.engine.asked == []
        for headers in ({"Authorization": "Bearer s3cret"}, {"x-api-key": "s3cret"}):
            assert (await one.post(json=HELLO, headers=headers))[0] == 200
            _, _, sent, _ = one.engine.asked[-1]
            assert sent["Authorization"] == "Bearer s3cret"
            assert "x-api-key" not in {name.lower() for name in sent}

    run(tmp_path, test, key="s3cret")


def test_a_packed_body_stays_packed(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        packed = gzip.compress(b"0" * (8 << 20))  # unpacked, it is beyond the limit
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        assert (await one.post(data=packed, headers=headers))[0] == 200
        assert one.engine.asked[-1][3] == packed
        assert one.engine.asked[-1][2]["Content-Encoding"] == "gzip"

    run(tmp_path, test)


# -- its own answers ---


def test_models_are_listed_at_all_times_with_their_state(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        for state in ("starting", "gone", "serving"):
            one.daemon.say(state, expected_s=7.0 if state == "starting" else None)

            async def listed(state: str = state) -> Any:
                _, found = await one.get("/v1/models")
                return found["data"][0] if found["data"][0]["state"] == state else None

            model = await soon(listed)
            assert (model["id"], model["max_model_len"]) == ("tiny", 4096)
            assert model["expected_s"] == (7 if state == "starting" else None)
            status, health = await one.get("/health")
            assert status == (200 if state == "serving" else 503)
            assert health == {"state": state, "waiting": 0, "at_engine": 0}
        assert (await one.get("/v1/models/tiny"))[1]["id"] == "tiny"
        assert (await one.get("/v1/models/other"))[0] == 404
        assert one.engine.asked == []

    run(tmp_path, test)


def test_a_model_that_is_not_served_is_named_with_those_that_are(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        status, found = await one.post(json={**HELLO, "model": "gpt\n\ndata: 4"})
        assert status == 404
        assert found["error"]["code"] == "model_not_found"
        assert "use one of: tiny" in found["error"]["message"]

        async def found_in_list() -> bool:
            return (await one.post(json={**HELLO, "model": "adapter"}))[0] == 200

        await soon(found_in_list)  # the engine's own list comes soon after it serves
        assert [model["id"] for model in (await one.get("/v1/models"))[1]["data"]] == [
            "tiny", "adapter",
        ]  # fmt: skip
        status, found = await one.post("/v1/messages", json={**HELLO, "model": "gpt"})
        assert (status, found["error"]["type"]) == (404, "not_found_error")
        assert len(one.engine.asked) == 1

    run(tmp_path, test)


def test_an_alias_reaches_the_engine_as_the_served_model_with_the_defaults(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        async def sent(body: Any, path: str = CHAT) -> Any:
            assert (await one.post(path, json=body))[0] == 200
            return json.loads(one.engine.asked[-1][3])

        assert await sent({**HELLO, "model": "gpt-4o"}) == {**HELLO, "temperature": 0.5}
        assert await sent({**HELLO, "model": ""}) == {**HELLO, "temperature": 0.5}
        body = {"model": "thinker", "input": "x", "temperature": 1}
        assert await sent(body, "/v1/responses") == {
            **body, "model": "tiny", "reasoning": {"effort": "high"},
        }  # fmt: skip
        assert (await one.post(json={**HELLO, "model": "gone"}))[0] == 404
        listed = (await one.get("/v1/models"))[1]["data"]
        names = [model["id"] for model in listed if model["id"] != "adapter"]
        assert names == ["tiny", "gpt-4o", "thinker"]
        assert (await one.get("/v1/models/gpt-4o"))[1]["max_model_len"] == 4096

    aliases = {"gpt-4o": "tiny", "thinker": "tiny:high", "gone": "other"}
    run(tmp_path, test, aliases=aliases, temperature=0.5)


def test_an_alias_means_what_is_served_when_the_wait_is_over(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        waits = asyncio.ensure_future(one.post(json={**HELLO, "model": "gpt-4o"}))
        await soon(lambda: one.daemon.reports and one.daemon.reports[-1]["waiting"] == 1)
        one.daemon.say("serving", names=["tiny"])
        assert (await waits)[0] == 200
        assert json.loads(one.engine.asked[-1][3]) == HELLO

    run(tmp_path, test, engine="starting", names=[], aliases={"gpt-4o": "tiny"})


def test_the_engine_s_other_paths_are_not_reached(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        paths = (
            "GET /metrics",
            "GET /collective_rpc",
            "GET /v1/%2e%2e/metrics",
            "GET /",
            "GET //v1/",
        )
        for asked in (*paths, "OPTIONS *"):
            reader, writer = await one.raw(f"{asked} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert b" 404 " in await reader.readline(), asked
            writer.close()
        assert one.engine.asked == []

    run(tmp_path, test)


def test_before_the_names_are_known_every_request_waits(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        assert (await one.get("/v1/models"))[1]["data"] == []
        waits = asyncio.ensure_future(one.post())
        await soon(lambda: one.daemon.reports and one.daemon.reports[-1]["waiting"] == 1)
        one.daemon.say("serving", names=["tiny"])
        assert (await waits)[0] == 200

    run(tmp_path, test, engine="starting", names=[])


# -- waiting ---


def test_a_stream_that_waits_hears_of_it_and_then_has_its_whole_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "FIRST_COMMENT_S", 0.01)

    async def test(one: World) -> None:
        one.engine.answer = events("one")
        async with one.session.post(one.url + CHAT, json=STREAMED) as got:
            comment = await got.content.readline()
            assert comment == b": the engine is starting, phase load, ready in about 40 s\n"
            one.daemon.say("serving")
            assert (await got.content.read()).endswith(b"data: one\n\ndata: [DONE]\n\n")

        async def wrong(request: web.Request) -> web.Response:
            return web.json_response({"error": {"message": "no"}}, status=400)

        # Its head is sent already: the engine's own error comes as an event.
        one.daemon.say("starting")
        one.engine.answer = wrong
        await soon(lambda: one.daemon.reports[-1]["seq"] == one.daemon.seq)
        async with one.session.post(one.url + CHAT, json=STREAMED) as got:
            await got.content.readline()
            one.daemon.say("serving")
            assert last_event(await got.text()) == {"error": {"message": "no"}}

    run(tmp_path, test, engine="starting", expected_s=40.0, phase="load")


def test_beyond_the_bounds_it_says_when_to_come_again(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        waiting = asyncio.ensure_future(one.post())
        await soon(lambda: one.daemon.reports and one.daemon.reports[-1]["waiting"] == 1)
        async with one.session.post(one.url + CHAT, json=HELLO) as got:
            assert (got.status, got.headers["Retry-After"]) == (429, "40")
            assert (await got.json())["error"]["type"] == "rate_limit_error"
        one.daemon.say("starting", expected_s=301.0)
        await soon(lambda: one.daemon.reports[-1]["seq"] == one.daemon.seq)
        one.daemon.say("gone")
        status, found = await waiting
        assert (status, found["error"]["code"]) == (503, "no_engine")

    run(tmp_path, test, engine="starting", expected_s=40.0, max_waiting=1)


# -- an engine that ends ---


def test_what_had_not_begun_is_answered_by_the_next_engine_and_begun_streams_end_properly(
    tmp_path: Path,
) -> None:
    async def test(one: World) -> None:
        one.engine.answer = events("one", then=for_ever)
        begun = [
            asyncio.ensure_future(one.session.post(one.url + path, json=STREAMED))
            for path in (CHAT, "/v1/messages")
        ]
        streams = [await one_of for one_of in begun]
        for got in streams:
            assert await got.content.readline() == b"data: one\n"
        one.engine.answer = for_ever
        waiting = [asyncio.ensure_future(one.post()) for _ in range(3)]
        await soon(lambda: len(one.engine.asked) == 5)
        await one.engine.stop()
        openai, anthropic = [await got.text() for got in streams]
        assert last_event(openai)["error"]["code"] == "engine_ended"
        assert last_event(anthropic)["error"]["type"] == "overloaded_error"
        assert "event: error\n" in anthropic
        one.daemon.say("starting")
        one.engine.answer = events("two")
        await one.engine.start(one.engine_port)  # type: ignore[attr-defined]
        assert not any(task.done() for task in waiting)
        one.daemon.say("serving")
        for status, text in await asyncio.gather(*waiting):
            assert (status, text) == (200, "data: two\n\ndata: [DONE]\n\n")
        await soon(lambda: one.daemon.reports[-1]["totals"]["ended"] == {"200": 5})
        assert one.daemon.reports[-1]["totals"]["resent"] == 3

    run(tmp_path, test)


def test_a_stalled_engine_is_left_as_soon_as_the_daemon_gives_it_up(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        one.engine.answer = events("one", then=for_ever)
        begun = await one.session.post(one.url + CHAT, json=STREAMED)
        one.engine.answer = for_ever
        waits = asyncio.ensure_future(one.post())
        await soon(lambda: len(one.engine.asked) == 2)
        one.daemon.say("starting")
        assert last_event(await begun.text())["error"]["code"] == "engine_ended"
        await soon(lambda: one.engine.left == 2)
        one.engine.answer = events("two")
        one.daemon.say("serving")
        assert (await waits)[0] == 200

    run(tmp_path, test)


def test_a_fault_of_a_dying_engine_reaches_nobody(tmp_path: Path) -> None:
    """vLLM's API server answers for a moment after its core has died."""

    async def test(one: World) -> None:
        async def dying(request: web.Request) -> web.Response:
            return web.json_response({"error": {"message": "EngineCore"}}, status=500)

        for answer in (dying, events('{"error": {"message": "EngineCore"}}')):
            one.engine.answer, asked = answer, len(one.engine.asked)
            waits = asyncio.ensure_future(one.post(json={**STREAMED, "n": asked}))
            await soon(lambda asked=asked: len(one.engine.asked) == asked + 1)
            one.daemon.say("starting")
            await soon(lambda: one.daemon.reports[-1]["waiting"] == 1)
            one.engine.answer = events("two")
            one.daemon.say("serving")
            assert await waits == (200, "data: two\n\ndata: [DONE]\n\n")

    run(tmp_path, test)


def test_an_engine_s_comments_begin_no_answer(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        async def waits(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            await response.write(b": keep-alive\n\n")
            return await for_ever()

        one.engine.answer = waits
        got = await one.session.post(one.url + CHAT, json=STREAMED)
        assert await got.content.readline() == b": keep-alive\n"
        one.daemon.say("starting")
        await soon(lambda: one.daemon.reports[-1]["waiting"] == 1)
        one.engine.answer = events("two")
        one.daemon.say("serving")
        assert (await got.text()).endswith("data: two\n\ndata: [DONE]\n\n")
        assert len(one.engine.asked) == 2

    run(tmp_path, test)


def test_an_error_event_in_a_begun_stream_is_the_engine_s_only_if_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = '{"error": {"message": "EngineCore", "code": 500}}'

    async def test(one: World) -> None:
        for dies in (True, False):
            one.engine.answer = events("one", error)
            got = await one.session.post(one.url + CHAT, json={**STREAMED, "n": dies})
            assert [await got.content.readline() for _ in "12"] == [b"data: one\n", b"\n"]
            if dies:
                one.engine.health = 503
                await soon(lambda: one.engine.health_checks > 1)
                one.daemon.say("starting")
                assert last_event(await got.text())["error"]["code"] == "engine_ended"
                one.engine.health = 200
                one.daemon.say("serving")
            else:
                assert await got.text() == f"data: {error}\n\ndata: [DONE]\n\n"

    monkeypatch.setattr(policy, "CONFIRM_S", 0.1)
    run(tmp_path, test)


def test_a_killer_is_refused_and_named_to_the_daemon_without_its_text(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        one.engine.answer = for_ever
        killer = asyncio.ensure_future(one.post(json={**HELLO, "response_format": {"x": "secret"}}))
        for turn in (1, 2):
            await soon(lambda turn=turn: len(one.engine.asked) == turn)
            one.daemon.say("starting")
            if turn == 1:
                await soon(lambda: one.daemon.reports[-1]["waiting"] == 1)
                one.daemon.say("serving")
                one.daemon.deaf = 1  # a report that does not arrive is sent again
        status, found = await killer
        assert (status, found["error"]["code"]) == (422, "ends_engine")
        await soon(lambda: any(report["endings"] for report in one.daemon.reports))
        (ending,) = next(report["endings"] for report in one.daemon.reports if report["endings"])
        assert ending.startswith(f"POST {CHAT}, ")
        assert ending.endswith("bytes with messages, model, response_format")

    run(tmp_path, test)


# -- its own end ---


def test_a_gateway_that_ends_tells_every_client_when_to_come_again(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        one.engine.answer = events("one", then=for_ever)
        begun = [
            await one.session.post(one.url + path, json=STREAMED) for path in (CHAT, "/v1/messages")
        ]
        for got in begun:
            assert await got.content.readline() == b"data: one\n"
        one.engine.answer = for_ever
        waits = asyncio.ensure_future(one.session.post(one.url + CHAT, json=HELLO))
        await soon(lambda: len(one.engine.asked) == 3)
        await one.gateway.end()  # type: ignore[attr-defined]
        openai, anthropic = [await got.text() for got in begun]
        assert last_event(openai)["error"]["code"] == "gateway_ends"
        assert "Retry-After" in last_event(openai)["error"]["message"]
        assert last_event(anthropic)["error"]["type"] == "overloaded_error"
        refused = await waits
        assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
        await soon(lambda: one.engine.left == 3)

    run(tmp_path, test)


# -- hostile clients ---


def test_bodies_are_bounded_in_size_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def endless() -> Any:
        while True:
            yield b"x" * 10_000

    async def test(one: World) -> None:
        status, found = await one.post(data=b"x" * ((1 << 20) + 1))
        assert (status, found["error"]["code"]) == (413, "request_too_large")
        assert (await one.post(data=endless()))[0] == 413
        monkeypatch.setattr(application, "BODY_SILENCE_S", 0.05)
        reader, writer = await one.raw(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nslow"
        )
        assert b" 408 " in await reader.readline()
        writer.close()
        reader, writer = await one.raw(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
        )
        assert b" 400 " in await reader.readline()
        writer.close()
        assert one.engine.asked == []
        await soon(lambda: one.daemon.reports[-1]["waiting"] == 0)

    run(tmp_path, test)


def test_a_body_that_arrives_too_slowly_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "BODY_GRACE_S", 0.0)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"

    async def test(one: World) -> None:
        reader, writer = await one.raw(head + b"x" * 900_000)
        assert b" 408 " in await reader.readline()
        writer.close()

    run(tmp_path, test, limits={**LIMITS, "min_body_kib_s": 1 << 20})


def test_headers_are_bounded_in_number(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        for count, status in ((10, 200), (20, 431)):
            headers = {f"X-{number}": "1" for number in range(count)}
            got, found = await one.post(json=HELLO, headers=headers)
            assert got == status
        assert "more than 20 headers, [gateway] max_headers" in found["error"]["message"]

    run(tmp_path, test, limits={**LIMITS, "max_headers": 20})


def test_heads_are_bounded_in_time_and_a_request_is_never_two(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        reader, writer = await one.raw(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n")
        assert await reader.read() == b""
        writer.close()
        both = b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n"
        hidden = b"0\r\n\r\nGET /v1/hidden HTTP/1.1\r\nHost: x\r\n\r\n"
        reader, writer = await one.raw(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + both + b"\r\n" + hidden
        )
        assert b" 400 " in await reader.readline()
        writer.close()
        assert one.engine.asked == []

    run(tmp_path, test, limits={**LIMITS, "head_s": 0.05})


ASKED = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
HIDDEN = b"GET /v1/hidden HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 4\r\nContent-Length: 40\r\n\r\nbody" + HIDDEN,
        b"Content-Length: 4, 40\r\n\r\nbody" + HIDDEN,
        b"Content-Length: +4\r\n\r\nbody" + HIDDEN,
        b"Content-Length: 4\r\nX-Long: a\r\n Content-Length: 40\r\n\r\nbody" + HIDDEN,
        b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
        b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + HIDDEN,
        b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n" + HIDDEN,
        b"X-Flood: " + b"x" * (64 << 10) + b"\r\n\r\n",
        b"".join(b"X-%d: 1\r\n" % number for number in range(20_000)) + b"\r\n",
    ],
    ids=["two lengths", "a list", "a sign", "folded", "odd coding", "a space", "two codings",
         "a negative chunk", "a long header", "many headers"],
)  # fmt: skip
def test_a_head_that_two_readers_could_read_in_two_ways_is_refused(
    tmp_path: Path, head: bytes
) -> None:
    async def test(one: World) -> None:
        reader, writer = await one.raw(ASKED + head)
        answer = b""
        with contextlib.suppress(ConnectionResetError):  # it has not read all that was sent
            answer = await reader.read()
        first = answer.partition(b"\r\n")[0]
        if b"X-Long" in head and b" 200 " in first:
            return  # aiohttp 3.8 unfolds it to one value, and the engine gets that: one reading
        assert not answer or b" 400 " in first or b" 431 " in first
        assert answer.count(b"HTTP/1.1 ") <= 1
        writer.close()
        assert not any(path == "/v1/hidden" for _, path, _, _ in one.engine.asked)
        assert (await one.post())[0] == 200

    run(tmp_path, test)


def test_crowds_of_idle_connections_give_way_to_who_asks(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        one.engine.answer = events("one", then=for_ever)
        begun = await one.session.post(one.url + CHAT, json=STREAMED)
        await begun.content.readline()
        idle = [await one.raw(b"") for _ in range(100)]
        one.engine.answer = whole
        assert (await one.post())[0] == 200
        assert not begun.content.at_eof()
        for _, writer in idle:
            writer.transport.abort()
        begun.close()

    run(tmp_path, test, limits={**LIMITS, "max_connections": 50})


def test_a_crowd_that_connects_at_once_leaves_others_their_turn(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        with contextlib.ExitStack() as crowd:
            for _ in range(200):
                crowd.enter_context(socket.create_connection(("127.0.0.1", one.port)))
            gateway = one.gateway
            accepted = [0]
            while accepted[-1] < 200:
                await turns()
                accepted.append(len(gateway.connections._open))
            most = max(now - before for before, now in itertools.pairwise(accepted))
            assert most <= server.ACCEPTED_AT_ONCE

    run(tmp_path, test)


def test_a_crowd_that_asks_at_once_leaves_others_their_turn(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        gateway = one.gateway
        crowd = [await one.raw(b"") for _ in range(100)]
        await soon(lambda: len(gateway.connections._open) == 100)
        for _, writer in crowd:
            writer.write(streams.request(json.dumps(HELLO).encode()))
        arrived = [0]
        while arrived[-1] < 100:
            await turns()
            arrived.append(sum(gateway.desk.counts.values()))
        most = max(now - before for before, now in itertools.pairwise(arrived))
        assert most <= connections.BEGUN_AT_ONCE
        for reader, _ in crowd:
            assert b"200 OK" in await reader.readuntil(b"hi")

    run(tmp_path, test)


def test_a_crowd_that_leaves_at_once_leaves_others_their_turn(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        one.engine.answer = events("one", then=for_ever)
        request = streams.request(json.dumps(STREAMED).encode())
        begun = [await one.raw(request) for _ in range(100)]
        for reader, _ in begun:
            await reader.readuntil(b"one")
        gateway = one.gateway
        assert gateway.desk.counts["at_engine"] == 100
        for _, writer in begun:
            writer.transport.abort()
        left = [100]
        while left[-1]:
            await turns()
            left.append(gateway.desk.counts["at_engine"])
        most = max(before - now for before, now in itertools.pairwise(left))
        assert most <= connections.CANCELLED_AT_ONCE
        await soon(lambda: one.engine.left == 100)

    run(tmp_path, test)


def test_connections_that_ask_for_nothing_need_nothing_of_the_library(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        gateway = one.gateway
        _, writer = await one.raw(b"")
        await soon(lambda: len(gateway.connections._open) == 1)
        assert gateway.library.connections == []
        writer.write(b"G")
        await soon(lambda: len(gateway.library.connections) == 1)
        writer.close()
        await soon(lambda: gateway.library.connections == [])

    run(tmp_path, test)


def test_what_comes_ahead_waits_for_its_turn_and_is_bounded(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        go_on = asyncio.Event()
        one.engine.answer = events("one", then=go_on.wait)
        call = streams.request(json.dumps(STREAMED).encode())
        reader, writer = await one.raw(call)
        await reader.readuntil(b"data: one")
        writer.write(call)
        await turns()
        go_on.set()
        await reader.readuntil(b"[DONE]")
        await reader.readuntil(b"[DONE]")
        assert len(one.engine.asked) == 2
        go_on.clear()
        writer.write(call)
        await reader.readuntil(b"data: one")
        writer.write(call * (connections.AHEAD_BYTES // len(call) + 1))
        await soon(lambda: one.engine.left == 1)
        writer.close()

    run(tmp_path, test)


def test_a_client_that_reads_nothing_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "WRITE_S", 0.05)

    async def test(one: World) -> None:
        one.engine.answer = events(*["x" * 100_000] * 200)
        body = json.dumps(STREAMED).encode()
        _, writer = await one.raw(
            b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % (CHAT.encode(), len(body)) + body
        )
        await soon(lambda: one.engine.left == 1)
        writer.close()

    run(tmp_path, test)
