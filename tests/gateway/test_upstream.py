"""Connections to the engine: reused while it keeps them open, or opened ahead, never stale."""

from __future__ import annotations

import asyncio
import gc
import warnings
from pathlib import Path

from caovand.gateway.spares import SPARES
from tests.gateway.test_server import run
from tests.gateway.world import STREAMED, World, events, whole
from tests.patience import soon


async def _ask(one: World, count: int = 3) -> list[object]:
    """The connections of so many requests, one after the other."""
    before = len(one.engine.peers)
    for number in range(count):
        one.engine.answer = events("one") if number % 2 else whole
        assert (await one.post(json=STREAMED))[0] == 200
    return [*one.engine.peers[before:]]


def test_connections_are_used_again_by_the_same_engine_alone(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        # Another one may be busy with the list of models.
        first = set(map(id, await _ask(one, 4)))
        assert len(first) <= 2
        before = one.engine.peers[0]
        one.daemon.say("serving")  # another engine, of another generation
        await soon(lambda: one.daemon.reports and one.daemon.reports[-1]["seq"] == one.daemon.seq)
        second = set(map(id, await _ask(one, 4)))
        assert len(second) <= 2
        assert not first & second
        await soon(before.is_closing)  # type: ignore[union-attr]

    run(tmp_path, test, keep_alive_s=600.0)


def test_an_engine_that_keeps_none_gets_one_for_each_request(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        assert len(set(map(id, await _ask(one)))) == 3

    run(tmp_path, test)


def test_one_that_was_idle_for_half_of_the_engines_time_is_closed(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        first = await _ask(one)
        await soon(first[0].is_closing)  # type: ignore[attr-defined]
        assert (await _ask(one, 1))[0] is not first[0]

    run(tmp_path, test, keep_alive_s=0.4)


def test_one_that_the_engine_has_closed_costs_no_request_a_second_try(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        for number in range(1, 4):
            assert (await one.post(json=STREAMED))[0] == 200
            assert len(one.engine.asked) == number
            peer = one.engine.peers[-1]
            assert peer is not None
            peer.abort()  # type: ignore[attr-defined]
            await soon(lambda: one.daemon.reports and one.daemon.reports[-1]["at_engine"] == 0)

    run(tmp_path, test, keep_alive_s=600.0)


def _spares(one: World) -> list[object]:
    """The connections that the engine has accepted, and no request has used."""
    return [each for each in one.engine.accepted if each not in one.engine.peers]


def _open_spares(one: World) -> list[object]:
    return [each for each in _spares(one) if not each.is_closing()]  # type: ignore[attr-defined]


async def _whole_spares(one: World) -> list[object]:
    """All spares, once they are open."""
    assert (await one.post(json=STREAMED))[0] == 200
    await soon(lambda: len(_open_spares(one)) == SPARES)
    return _open_spares(one)


def test_a_request_takes_a_connection_opened_ahead_and_no_other_request_does(
    tmp_path: Path,
) -> None:
    async def test(one: World) -> None:
        for _ in range(3):
            spares = await _whole_spares(one)
            used = await _ask(one, 1)
            assert used[0] is spares[0]
            await soon(used[0].is_closing)  # type: ignore[attr-defined]
        assert len({*map(id, one.engine.peers)}) == len(one.engine.peers)

    run(tmp_path, test, keep_alive_s=600.0, reuses_connections=False)


def test_no_more_spares_are_opened_than_the_engine_has_threads_for(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        await asyncio.gather(*(one.post(json=STREAMED) for _ in range(20)))
        await soon(lambda: len(_open_spares(one)) == SPARES)
        await _ask(one, 1)
        await soon(lambda: len(_open_spares(one)) == SPARES)
        assert len(one.engine.peers) + 2 * SPARES >= len(one.engine.accepted)

    run(tmp_path, test, keep_alive_s=600.0, reuses_connections=False)


def test_a_spare_that_nobody_takes_for_half_of_the_engines_time_is_closed(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        assert (await one.post(json=STREAMED))[0] == 200
        await soon(lambda: len(_spares(one)) >= SPARES and not _open_spares(one))
        before = _spares(one)
        assert (await _ask(one, 1))[0] not in before

    run(tmp_path, test, keep_alive_s=0.4, reuses_connections=False)


def test_a_spare_that_the_engine_has_closed_costs_no_request_a_second_try(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        for spare in await _whole_spares(one):
            spare.abort()  # type: ignore[attr-defined]
        await _ask(one, 2)
        assert len(one.engine.asked) == 3

    run(tmp_path, test, keep_alive_s=600.0, reuses_connections=False)


def test_another_engine_gets_no_spare_of_the_previous_one(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        earlier = await _whole_spares(one)
        one.daemon.say("serving")
        await soon(lambda: one.daemon.reports and one.daemon.reports[-1]["seq"] == one.daemon.seq)
        assert not {*map(id, await _ask(one))} & {*map(id, earlier)}
        for spare in earlier:
            await soon(spare.is_closing)  # type: ignore[attr-defined]

    run(tmp_path, test, keep_alive_s=600.0, reuses_connections=False)


def test_a_gateway_that_ends_closes_its_spares(tmp_path: Path) -> None:
    async def test(one: World) -> None:
        await _whole_spares(one)

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", ResourceWarning)
        run(tmp_path, test, keep_alive_s=600.0, reuses_connections=False)
        gc.collect()
    assert not [each for each in found if "Unclosed connection" in str(each.message)]
