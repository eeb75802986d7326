"""Clients with their own keys: identification, permissions and usage."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from caovand.core.gateway.events import EngineIs, EngineState
from caovand.core.gateway.keys import ClientKey, digest_of, to_document
from caovand.core.gateway.record import NOTHING, Record, is_row
from caovand.gateway import link
from caovand.gateway.desk import Desk
from caovand.gateway.facts import Facts
from tests.gateway.test_server import run
from tests.gateway.world import CHAT, HELLO, STREAMED, World, events, for_ever, whole
from tests.patience import soon

KEYS = to_document([
    ClientKey("alice", digest_of("a")),
    ClientKey("bob", digest_of("b"), models=("tiny",)),
    ClientKey("carol", digest_of("c"), rpm=1, temperature=0.2, max_tokens=9),
    ClientKey("dave", digest_of("d"), tokens_per_day=10),
])  # fmt: skip


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def post(one: World, secret: str, path: str = CHAT, **more: Any) -> tuple[int, Any]:
    return await one.post(path, headers=bearer(secret), **(more or {"json": HELLO}))


def waiting(one: World) -> tuple[int, int]:
    last = one.daemon.reports[-1] if one.daemon.reports else {"waiting": 0, "at_engine": 0}
    return last["waiting"], last["at_engine"]


def test_only_a_client_s_own_key_opens_and_the_engine_gets_the_engine_s(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        for wrong in ("", "s3cret", "x"):
            assert (await post(one, wrong))[0] == 401
        await soon(lambda: one.daemon.reports[-1]["totals"]["ended"] == {"401": 3})
        assert (await one.post(json=HELLO, headers={"x-api-key": "a"}))[0] == 200
        assert one.engine.asked[-1][2]["Authorization"] == "Bearer s3cret"
        # Revoked: refused at once, while what runs is finished.
        one.engine.answer = for_ever
        runs = asyncio.ensure_future(post(one, "a"))
        await soon(lambda: len(one.engine.asked) == 2)
        one.daemon.say("serving", generation=1, keys=[])
        await soon(lambda: one.daemon.reports[-1]["seq"] == one.daemon.seq)
        assert (await post(one, "a"))[0] == 401
        assert not runs.done()
        runs.cancel()

    run(tmp_path, test, keys=KEYS, key="s3cret")


def test_a_key_for_some_models_knows_no_others(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        async def listed_too() -> bool:
            return (await post(one, "a", json={**HELLO, "model": "adapter"}))[0] == 200

        await soon(listed_too)  # the engine's own list comes soon after it serves
        assert (await post(one, "b"))[0] == 200
        assert (await post(one, "b", json={**HELLO, "model": "gpt-4o"}))[0] == 200
        status, found = await post(one, "b", json={**HELLO, "model": "adapter"})
        assert (status, found["error"]["code"]) == (404, "model_not_found")
        assert "adapter," not in found["error"]["message"]
        _, listed = await one.get("/v1/models", headers=bearer("b"))
        assert [model["id"] for model in listed["data"]] == ["tiny", "gpt-4o"]
        # A body that cannot be read may name any model.
        form = {"data": b'{"model": "adapter"}'}
        assert (await post(one, "b", "/v1/audio/transcriptions", **form))[0] == 403
        assert (await post(one, "a", "/v1/audio/transcriptions", **form))[0] == 200

    run(tmp_path, test, keys=KEYS, aliases={"gpt-4o": "tiny"})


def test_a_key_with_many_requests_lets_another_s_pass(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        go_on = asyncio.Event()
        one.engine.answer = events("one", then=go_on.wait)
        asked = one.engine.asked
        posts = []
        for count, (secret, number) in enumerate([("a", 1), ("a", 2), ("a", 3), ("b", 4)]):
            body = {**STREAMED, "n": number}
            posts.append(asyncio.ensure_future(post(one, secret, json=body)))
            await soon(lambda count=count: waiting(one) == (count, 1))
        go_on.set()
        await asyncio.gather(*posts)
        assert [json.loads(body)["n"] for *_, body in asked] == [1, 4, 2, 3]

    run(tmp_path, test, keys=KEYS, at_once=1)


def test_limits_are_said_with_when_they_end_and_use_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "USAGE_S", 0.01)

    async def test(one: World) -> None:
        assert (await post(one, "c"))[0] == 200
        assert json.loads(one.engine.asked[-1][3]) == {**HELLO, "temperature": 0.2, "max_tokens": 9}
        async with one.session.post(one.url + CHAT, json=HELLO, headers=bearer("c")) as got:
            assert got.status == 429
            assert 0 < int(got.headers["Retry-After"]) <= 60
            assert "carol" in (await got.json())["error"]["message"]
        assert (await post(one, "d"))[0] == 200
        status, found = await post(one, "d")
        assert (status, found["error"]["code"]) == (429, "key_limit")
        await soon(lambda: len(one.daemon.used) == 2)
        assert [row[1:3] for row in one.daemon.used] == [["carol", 1], ["dave", 1]]
        assert one.daemon.used[0][3] == -(-len(json.dumps(HELLO)) // 4)

    run(tmp_path, test, keys=KEYS)


def test_requests_that_end_without_a_pause_keep_the_daemon_no_busier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "USAGE_S", 0.01)
    asked: list[str] = []

    async def test() -> None:
        engine = EngineIs(at=0.0, state=EngineState.SERVING, generation=1)
        desk, one_of_each = Desk(Facts(engine), time.monotonic), asyncio.Event()
        one = link.Link(tmp_path, time.monotonic, 1)

        def end_a_request() -> None:
            desk.ended(Record(0.0, 0.0, "alice", CHAT))
            desk.usage.add("alice", NOTHING, 0.0)

        async def ask(op: str, **args: Any) -> dict[str, Any]:
            asked.append(op)
            assert len(asked) < 9
            end_a_request()
            if len(asked) == 2:
                one_of_each.set()
            return {}

        monkeypatch.setattr(one, "_ask", ask)
        end_a_request()
        reports = asyncio.ensure_future(one._report_usage(desk))
        await one_of_each.wait()
        assert asked == ["gateway_used", "gateway_requests"]
        reports.cancel()

    asyncio.run(test())


def test_each_request_that_ended_is_reported_without_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "USAGE_S", 0.01)

    async def test(one: World) -> None:
        assert (await post(one, "c"))[0] == 200
        assert (await post(one, "c"))[0] == 429
        assert (await post(one, "a", json={**HELLO, "model": "gpt"}))[0] == 404
        one.engine.answer = events("one", then=for_ever)
        got = await one.session.post(one.url + CHAT, json=STREAMED, headers=bearer("a"))
        await got.content.readany()
        got.close()
        await soon(lambda: len(one.daemon.requests) == 4)
        rows = one.daemon.requests
        assert all(map(is_row, rows))
        assert [(row["key"], row["model"], row["status"], row["outcome"]) for row in rows] == [
            ("carol", "tiny", 200, ""),
            ("carol", "", 429, "key_limit"),
            ("alice", "gpt", 404, "model_not_found"),
            ("alice", "tiny", 0, "client gone"),
        ]
        assert 0 <= rows[0]["waited_s"] <= rows[0]["first_s"] <= rows[0]["whole_s"]
        assert "hello" not in json.dumps(rows)
        one.engine.answer = whole
        for clock in ("10:00", "10:01"):
            turns = [{"role": "user", "content": text * 4000} for text in "ab"]
            body = {**HELLO, "messages": [{"role": "system", "content": clock}, *turns]}
            assert (await post(one, "a", json=body))[0] == 200
        await soon(lambda: len(rows) == 6)
        assert [row["prefix"] for row in rows[4:]] == [
            "", "message 1 changed: about 2,015 tokens read again",
        ]  # fmt: skip
        one.daemon.say("serving", reading_rate=500.0)
        await soon(lambda: one.gateway.desk.facts.reading_rate == 500.0)
        body["messages"][0]["content"] = "10:02"
        assert (await post(one, "a", json=body))[0] == 200
        await soon(lambda: len(rows) == 7)
        assert rows[6]["prefix"].endswith("2,015 tokens read again, about 4 s")
        ended = {"200": 4, "429": 1, "404": 1, "0": 1}
        await soon(lambda: one.daemon.reports[-1]["totals"]["ended"] == ended)

    run(tmp_path, test, keys=KEYS)
