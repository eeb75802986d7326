"""The requests of Open WebUI 0.12 (its routers openai.py and tasks.py), as engines come and go.

It lists the models before each chat, for 10 s at most, passes the stream on to the browser, and
then asks for a title, tags and follow-up questions, each a whole answer with fields of its own.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from caovand.gateway import exchange
from tests.gateway.test_server import run
from tests.gateway.world import CHAT, HELLO, World, events, last_event, whole
from tests.patience import soon

KEY = {"Authorization": "Bearer s3cret"}
SENT = {
    **KEY,
    "Content-Type": "application/json",
    "X-OpenWebUI-User-Name": "J%C3%BCrgen",
    "X-OpenWebUI-User-Role": "admin",
    "X-OpenWebUI-Chat-Id": "c0ffee",
}
STREAM = {**HELLO, "stream": True, "stream_options": {"include_usage": True}}
TITLE = {**HELLO, "stream": False, "max_tokens": 1000}


def test_its_chat_waits_for_the_engine_and_its_tasks_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "FIRST_COMMENT_S", 0.01)

    async def test(one: World) -> None:
        _, listed = await one.get("/v1/models", headers=KEY)
        assert [model["id"] for model in listed["data"]] == ["tiny"]
        one.engine.answer = events('{"choices": []}')
        async with one.session.post(one.url + CHAT, data=json.dumps(STREAM), headers=SENT) as got:
            # It takes an answer for a stream by this header, and passes all others on.
            assert (got.status, got.content_type) == (200, "text/event-stream")
            assert (await got.content.readline()).startswith(b": ")
            one.daemon.say("serving")
            assert (await got.text()).endswith('data: {"choices": []}\n\ndata: [DONE]\n\n')
        method, path, headers, body = one.engine.asked[-1]
        assert (method, path, json.loads(body)) == ("POST", CHAT, STREAM)
        assert {name: headers[name] for name in SENT} == SENT
        one.engine.answer = whole
        tasks = [one.post(data=json.dumps(TITLE), headers=SENT) for _ in range(3)]
        for status, answer in await asyncio.gather(*tasks):
            assert (status, answer) == (200, {"choices": [{"text": "hi"}]})

    run(tmp_path, test, key="s3cret", engine="starting")


def test_its_chat_sees_an_error_it_can_show_and_the_model_stays_listed(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        one.engine.answer = events("one", then=asyncio.Event().wait)
        got = await one.session.post(one.url + CHAT, data=json.dumps(STREAM), headers=SENT)
        await got.content.readline()
        one.daemon.say("gone")
        assert last_event(await got.text())["error"]["message"].startswith("cannot answer")
        await soon(lambda: one.daemon.reports[-1]["seq"] == one.daemon.seq)
        async with one.session.post(one.url + CHAT, data=json.dumps(STREAM), headers=SENT) as got:
            # It shows `error.message` of a JSON answer, and passes Retry-After on.
            assert (got.status, got.headers["Retry-After"]) == (503, "30")
            assert (await got.json())["error"]["message"].startswith("cannot answer")
        _, listed = await one.get("/v1/models", headers=KEY)
        assert "tiny" in [model["id"] for model in listed["data"]]

    run(tmp_path, test, key="s3cret")
