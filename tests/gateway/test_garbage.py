"""Garbage is collected while no request is there."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from caovand.gateway import garbage
from tests.gateway.test_server import run
from tests.gateway.world import CHAT, STREAMED, World, events, for_ever
from tests.patience import soon


class Cycle:
    """Refers to itself, so that only the collector can free it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def manual_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("manual_collector")
def test_what_is_old_is_collected_in_a_pause_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "LOOK_S", 0.001)
    looks: list[bool] = []
    idle = False

    def is_idle() -> bool:
        looks.append(idle)
        return idle

    async def test() -> None:
        nonlocal idle
        collecting = asyncio.ensure_future(garbage.collect_when_idle(is_idle))
        await soon(lambda: looks)
        old = Cycle()
        for generation in (0, 1):
            gc.collect(generation)
        found = weakref.ref(old)
        del old
        looks.clear()
        await soon(lambda: len(looks) > 3)
        assert found() is not None
        idle = True
        await soon(lambda: found() is None)
        collecting.cancel()

    asyncio.run(test())


def test_full_collections_come_late_while_it_runs() -> None:
    async def test() -> None:
        usual = gc.get_threshold()
        collecting = asyncio.ensure_future(garbage.collect_when_idle(lambda: True))
        await asyncio.sleep(0)
        assert gc.get_threshold() == (*usual[:2], garbage.MIDDLE_COLLECTIONS)
        collecting.cancel()
        await asyncio.wait([collecting])
        assert gc.get_threshold() == usual

    asyncio.run(test())


@pytest.mark.usefixtures("manual_collector")
def test_a_gateway_that_does_nothing_collects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "LOOK_S", 0.001)
    looks: list[None] = []

    def is_idle() -> bool:
        looks.append(None)
        return True

    async def test() -> None:
        before = gc.get_stats()[2]["collections"]
        collecting = asyncio.ensure_future(garbage.collect_when_idle(is_idle))
        await soon(lambda: len(looks) > 3)
        assert gc.get_stats()[2]["collections"] == before
        collecting.cancel()

    asyncio.run(test())


def test_a_gateway_with_a_request_is_not_idle(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        gateway = one.gateway
        assert gc.get_threshold()[2] == garbage.MIDDLE_COLLECTIONS
        assert gateway.desk.is_idle
        one.engine.answer = events("one", then=for_ever)
        begun = await one.session.post(one.url + CHAT, json=STREAMED)
        await begun.content.readline()
        assert not gateway.desk.is_idle
        begun.close()
        await soon(lambda: gateway.desk.is_idle)

    run(tmp_path, test)
