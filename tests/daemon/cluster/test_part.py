"""Behaviour shared by all cluster roles."""

from __future__ import annotations

import asyncio

import pytest

from caovand.daemon.cluster import part
from caovand.daemon.cluster.part import MAX_TEXTS, Notices, Signal
from tests.patience import turns


def test_a_text_is_published_once_and_a_flood_of_them_silences_nothing_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at, told = 0.0, list[str]()
    monkeypatch.setattr(part, "now", lambda: at)
    telling = Notices(lambda kind, text: told.append(text))
    for number in range(2 * MAX_TEXTS):
        telling.publish(f"text {number}")
    assert len(told) == MAX_TEXTS
    for _ in range(2):
        at += 3000.0
        telling.publish("text 0")
        telling.publish("another")
    assert told[MAX_TEXTS:] == ["another"], "text 0 never ceased to come"
    at += 3600.0
    telling.publish("text 0")
    assert told[-1] == "text 0"


def test_who_waits_again_and_again_is_cancelled_also_as_a_change_comes() -> None:
    """It would go on for ever otherwise, and the daemon with it."""

    async def story() -> None:
        changed = Signal()

        async def work() -> None:
            while True:
                await changed.wait(3600.0)

        working = asyncio.ensure_future(work())
        await turns()
        changed.wake()
        await turns()
        working.cancel()
        await turns(10)
        assert working.cancelled()

    asyncio.run(story())


def test_a_wait_ends_by_a_change_or_by_its_time_and_then_begins_anew() -> None:
    async def story() -> None:
        changed = Signal()
        changed.wake()
        await changed.wait(3600.0)
        await changed.wait(0.001)

    asyncio.run(story())
