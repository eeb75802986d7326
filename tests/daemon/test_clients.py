"""A slot's messages to the gateway, and how long an engine's end waits for its answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from caovand.adapters.network.http import Endpoint
from caovand.core.config.key import ConfigError
from caovand.core.config.schema import Config, ModelSection
from caovand.core.config.services import AliasDefaults, GatewaySection
from caovand.core.gateway.events import EngineState
from caovand.core.gateway.keys import ClientKey
from caovand.core.gateway.record import Totals
from caovand.core.gateway.slot import engine_of, will_return
from caovand.core.lifecycle.events import EndChild
from caovand.core.lifecycle.state import Ending, Snapshot, State
from caovand.core.plan import Plan, Setting
from caovand.core.reporting.starts import CompletedStart, to_document
from caovand.daemon import clients as module
from caovand.daemon.clients import Clients
from caovand.daemon.keys import Keys
from caovand.daemon.shared import Changes, now
from caovand.daemon.start.starts import Starts
from caovand.engines import registry
from tests.patience import LIMIT_S, soon, turns

PLAN = Plan("/m/tiny", {
    "served_model_name": Setting(["tiny", "small"], "user", ""),
    "max_num_seqs": Setting(16, "policy", ""),
    "max_model_len": Setting(4096, "policy", ""),
}, {})  # fmt: skip
NEXT, BACKOFF, HOLD, FAIL = (Ending(what) for what in ("start", "backoff", "hold", "fail"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("snapshot", "drains", "state", "another"),
    [
        (Snapshot(), False, EngineState.GONE, False),
        (Snapshot(State.STARTING), False, EngineState.STARTING, False),
        (Snapshot(State.SERVING), False, EngineState.SERVING, False),
        (Snapshot(State.BACKOFF), False, EngineState.STARTING, False),
        (Snapshot(State.HOLD), False, EngineState.STARTING, False),
        (Snapshot(State.FAILED), False, EngineState.GONE, False),
        (Snapshot(State.RECYCLING, ending=NEXT), True, EngineState.DRAINING, True),
        (Snapshot(State.RECYCLING, ending=BACKOFF), False, EngineState.STARTING, True),
        (Snapshot(State.RECYCLING, ending=HOLD), False, EngineState.STARTING, True),
        (Snapshot(State.RECYCLING, ending=FAIL), False, EngineState.GONE, False),
        (Snapshot(State.STOPPING, ending=Ending("stopped")), True, EngineState.DRAINING, False),
        (Snapshot(State.STOPPING, ending=Ending("quit")), False, EngineState.GONE, False),
    ],
)
def test_every_state_means_something_to_clients(
    snapshot: Snapshot, drains: bool, state: EngineState, another: bool
) -> None:
    assert engine_of(snapshot, drains=drains) is state
    assert will_return(snapshot) is another


class World:
    def __init__(self, folder: Path) -> None:
        self.snapshot = Snapshot()
        self.endpoint: Endpoint | None = None
        self.key: str | None = "of the file"
        self.config = Config(model=ModelSection(path="/m/first/"), gateway=GatewaySection())
        self.changes, self.told = Changes(lambda: None), list[str]()
        self.blamed: list[str] = []
        self.file = folder / "starts.json"
        self.keys = Keys(folder, lambda _, text: self.told.append(text), self.changes.wake)
        self.engine = registry.engine_of()
        starts = Starts(self.file, frozenset())
        self.clients = Clients(self, starts, self.keys, self.changes)

    def notice(self, _: str, text: str) -> None:
        self.told.append(text)

    def blame(self, requests: Sequence[str]) -> None:
        self.blamed += requests

    def keep_alive_s(self) -> float:
        return 5.0

    def reading_rate(self) -> float | None:
        return 2500.0

    def client_key(self) -> str:
        if self.key is None:
            raise ConfigError(["cannot read the file"])
        return self.key

    def turn(self, state: State, **more: Any) -> None:
        self.snapshot = replace(self.snapshot, state=state, **more)
        self.changes.wake()


def run(folder: Path, test: Callable[[World], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        await asyncio.wait_for(test(World(folder)), LIMIT_S)

    asyncio.run(all_of_it())


def test_a_question_is_answered_once_there_is_news(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        first = await world.clients.next(0, 60.0)
        assert (first["engine"], first["names"], first["url"]) == ("gone", [], "")
        world.config = Config(
            model=ModelSection(path="/m/first.gguf", served_name="first"),
            gateway=GatewaySection(
                max_connections=100,
                aliases=(("deep", "tiny"),),
                alias_defaults=(("deep", AliasDefaults(0.6, reasoning_effort="high")),),
            ),
        )
        assert (await world.clients.next(0, 0.0))["names"] == ["first"]
        assert first["key"] == "of the file"
        world.key = None
        locked = (await world.clients.next(0, 0.0))["key"]
        assert len(locked) >= 32, "nobody has it"
        first = await world.clients.next(0, 0.0)
        waits = asyncio.ensure_future(world.clients.next(first["seq"], 60.0))
        await turns()
        world.changes.wake()  # of something else
        await turns()
        assert not waits.done()
        world.endpoint = Endpoint("::", 8000, "s3cret")
        world.turn(State.SERVING, plan=PLAN, generation=3)
        news = await waits
        assert news == {
            "seq": first["seq"] + 1, "engine": "serving", "generation": 3, "returns": False,
            "phase": "", "at_once": 18, "names": ["tiny", "small"], "context": 4096,
            "url": "http://[::1]:8000", "key": "s3cret", "hold_s": 300.0, "max_waiting": 1000,
            "aliases": {"deep": "tiny"}, "temperature": None, "max_tokens": None, "effort": None,
            "alias_defaults": {"deep": (0.6, None, "high")},
            "limits": {
                "max_connections": 100, "head_s": 15.0, "max_headers": 256, "min_body_kib_s": 32,
            },
            "keys": None, "expected_s": None, "used": {"day": ANY, "tokens": {}},
            "keep_alive_s": 5.0, "reuses_connections": True, "health": "/health",
            "reading_rate": 2500.0,
        }  # fmt: skip
        assert await world.clients.next(news["seq"], 0.0) == news

    run(tmp_path, test)


def test_the_seconds_of_a_start_are_those_of_the_last(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        start = CompletedStart(PLAN.identity, 0.0, 90.0, {})
        world.file.write_text(json.dumps(to_document([start])))
        world.turn(State.STARTING, plan=PLAN, since=now() - 30)
        assert (await world.clients.next(0, 0.0))["expected_s"] == pytest.approx(60, abs=5)
        world.turn(State.STARTING, since=now() - 91)
        assert (await world.clients.next(0, 0.0))["expected_s"] is None
        world.turn(State.BACKOFF, deadline=now() + 20)
        assert (await world.clients.next(0, 0.0))["expected_s"] == pytest.approx(110, abs=5)
        world.turn(State.RECYCLING, ending=NEXT)
        assert (await world.clients.next(0, 0.0))["expected_s"] == 90.0
        world.turn(State.HOLD, ending=None)
        assert (await world.clients.next(0, 0.0))["expected_s"] is None

    run(tmp_path, test)


def test_a_revoked_key_is_news_at_once(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.keys.add(ClientKey("alice", ""))
        first = await world.clients.next(0, 0.0)
        waits = asyncio.ensure_future(world.clients.next(first["seq"], 60.0))
        await turns()
        world.keys.revoke("alice")
        assert (await waits)["keys"] == []

    run(tmp_path, test)


def report(world: World, seq: int, at_engine: int) -> None:
    world.clients.report(seq, {"waiting": 0, "at_engine": at_engine}, Totals().document(), [])


def test_an_end_waits_until_the_gateway_knows_and_has_no_answer_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.0)

    async def test(world: World) -> None:
        world.turn(State.SERVING, plan=PLAN)
        before = (await world.clients.next(0, 0.0))["seq"]
        report(world, before, 0)
        asks = asyncio.ensure_future(world.clients.next(before, 600.0))
        world.snapshot = replace(world.snapshot, state=State.RECYCLING, ending=NEXT)
        world.clients.ends(EndChild(1, 15.0, 600.0), again=False)
        ends = asyncio.ensure_future(world.clients.drain())
        world.changes.wake()
        news = await asks
        assert news["engine"] == "draining"
        asks = asyncio.ensure_future(world.clients.next(news["seq"], 600.0))
        for at_engine in (0, 2):  # an older report says nothing of what it forwards now
            report(world, before if at_engine == 0 else news["seq"], at_engine)
            await turns(10)
            assert not ends.done()
        report(world, news["seq"], 0)
        await ends
        asks.cancel()

    run(tmp_path, test)


def test_an_end_does_not_wait_for_a_silent_gateway_or_beyond_its_time_or_in_a_hurry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.0)

    async def test(world: World) -> None:
        world.clients.ends(EndChild(1, 15.0, 600.0), again=False)
        await world.clients.drain()  # no gateway
        asks = asyncio.ensure_future(world.clients.next(0, 0.0))
        seq = (await asks)["seq"]
        asks = asyncio.ensure_future(world.clients.next(seq, 600.0))
        report(world, seq, 1)
        world.clients.ends(EndChild(1, 15.0, 0.01), again=False)
        await world.clients.drain()
        world.clients.ends(EndChild(1, 15.0, 600.0), again=False)
        ends = asyncio.ensure_future(world.clients.drain())
        await turns(10)
        assert not ends.done()
        world.clients.ends(EndChild(1, 2.0), again=True)  # a stop meanwhile
        await turns(10)
        assert not ends.done()
        world.clients.ends(EndChild(1, 0.0), again=True)
        await ends
        asks.cancel()
        await soon(asks.done)

    run(tmp_path, test)


def test_totals_go_on_where_another_gateway_begins_at_nothing(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        for ended, waited_s, resent in (
            ({"200": 2}, 1.0, 1), ({"200": 3, "0": 1}, 1.5, 1), ({"200": 1}, 0.5, 0),
        ):  # fmt: skip
            totals = {"ended": ended, "waited_s": waited_s, "resent": resent}
            world.clients.report(1, {"waiting": 0, "at_engine": 0}, totals, [])
        assert world.clients.totals == {
            "ended": {"200": 4, "0": 1}, "waited_s": 2.0, "resent": 1,
        }  # fmt: skip

    run(tmp_path, test)


def test_a_gateway_that_is_gone_has_no_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: World) -> None:
        asks = asyncio.ensure_future(world.clients.next(0, 600.0))
        seq = (await asks)["seq"]
        asks = asyncio.ensure_future(world.clients.next(seq, 600.0))
        await turns()
        monkeypatch.setattr(module, "SILENT_S", 0.0)
        report(world, seq, 3)
        assert world.clients.counts["at_engine"] == 3
        asks.cancel()  # its connection is gone
        await soon(asks.done)
        await soon(lambda: world.clients.counts["at_engine"] == 0)

    run(tmp_path, test)


def test_a_request_that_ends_engines_is_named_in_the_events(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        counts = {"waiting": 1, "at_engine": 2}
        shape = "POST /v1/completions, 9 bytes with prompt"
        world.clients.report(1, counts, Totals().document(), [shape])
        assert world.clients.counts == counts
        (text,) = world.told
        assert text.endswith(shape)
        assert world.blamed == [shape]

    run(tmp_path, test)
