"""The cards of an engine: relevant samples, and memory that is freed or not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from caovand.core.facts.inventory import Gpu
from caovand.core.health.observation import GpuSample
from caovand.daemon import cards
from caovand.daemon.cards import Cards, CardUsage
from tests.core.machines import turing

(CARD,) = turing(1)
HELD = replace(CARD, free_mib=CARD.free_mib - 9_000, users=((1, "VLLM::Worker", 9_000),))


@pytest.fixture(autouse=True)
def _no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        def __init__(self, *_: Any) -> None: ...

    monkeypatch.setattr(cards, "GpuSampler", Silent)
    monkeypatch.setattr(cards, "POLL_S", 0.001)


def look_like(monkeypatch: pytest.MonkeyPatch, looks: Iterator[Gpu]) -> None:
    monkeypatch.setattr(cards.nvml, "read_gpus", lambda: (next(looks),))


def freed(hurry: bool = False) -> str:
    return asyncio.run(cards.wait_for_freed_memory([CARD], {1}, lambda: hurry))


def always(gpu: Gpu) -> Iterator[Gpu]:
    while True:
        yield gpu


def test_memory_that_comes_back_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([HELD, HELD, CARD])
    look_like(monkeypatch, looks)
    assert freed() == ""
    assert next(looks, None) is None


def test_memory_that_never_comes_back_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "BACK_S", 0.05)
    look_like(monkeypatch, always(HELD))
    assert freed() == "GPU 0: 9000 MiB have not been freed, still used by pid 1"


def test_memory_nobody_known_holds_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "STUCK_S", 0.05)
    look_like(monkeypatch, always(replace(HELD, users=())))
    assert freed() == "GPU 0: 9000 MiB have not been freed"


def test_a_daemon_that_ends_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    look_like(monkeypatch, always(HELD))
    assert "not been freed" in freed(hurry=True)


def test_only_samples_of_cards_in_use_count_and_neighbours_are_told() -> None:
    seen: list[GpuSample] = []
    told: list[str] = []

    def sample(index: int, *users: tuple[int, int]) -> GpuSample:
        return GpuSample(index, 0, 22_527, None, None, None, time.monotonic(), users=users)

    async def scenario() -> None:
        one = Cards(1.0, lambda line: None)
        one.share(CardUsage(seen.append, lambda line: None, told.append)).engine({1}, {7})
        one._samples([sample(0, (9, 9_000)), sample(1, (7, 9_000))])
        one._samples([sample(0, (9, 18_000)), sample(1, (7, 9_000), (2**22 + 1, 3_000))])
        assert set(one.latest) == {0, 1}

    asyncio.run(scenario())
    assert [s.index for s in seen] == [1, 1]
    assert told == ["GPU 1: another program (pid 4194305) has allocated 3000 MiB"]


def test_a_fault_of_a_card_goes_to_the_slots_that_use_it() -> None:
    told: list[tuple[str, str]] = []

    async def scenario() -> None:
        one = Cards(1.0, lambda line: told.append(("daemon", line)))
        for name, used in (("a", {0}), ("b", {1}), ("both", {0, 1})):

            def heard(line: str, name: str = name) -> None:
                told.append((name, line))

            one.share(CardUsage(lambda sample: None, heard, lambda text: None)).engine(used, ())
        one._xid(1, "Xid 79")
        one._xid(2, "Xid 48")

    asyncio.run(scenario())
    assert told == [("daemon", "Xid 79"), ("b", "Xid 79"), ("both", "Xid 79")]


def test_a_sample_of_a_driver_that_answers_no_more_is_not_shown_for_ever() -> None:
    async def scenario() -> None:
        one, at = Cards(1.0, lambda line: None), time.monotonic()
        for index, age_s in ((0, 24.0), (1, 10.0)):
            one._samples([GpuSample(index, 0, 22_527, None, None, None, at - age_s)])
        assert set(one.latest) == {1}

    asyncio.run(scenario())


def test_what_others_have_is_known_while_ours_can_be_told_from_theirs() -> None:
    found: list[object] = []

    def sample(*users: tuple[int, int]) -> GpuSample:
        return GpuSample(0, 0, 22_527, None, None, None, 0.0, users=users)

    async def scenario() -> None:
        one = Cards(1.0, lambda line: None)
        slot = one.share(CardUsage(lambda sample: None, lambda line: None, lambda text: None))
        slot.engine({0}, {7})
        for users in (((9, 9_000),), ((7, 5_000), (9, 3_000), (10, 200)), ((9, 1_000),)):
            one._samples([sample(*users)])
            found.append(slot.others())

    asyncio.run(scenario())
    # The engine's own are not among them before it has memory, nor when it has just died.
    assert found == [{}, {0: 3_200}, {0: 3_200}]


def test_who_has_taken_memory_is_asked_of_the_driver_once_ours_were_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two samples others may take what the engine then lacks, and the engine be gone."""
    taken = replace(CARD, users=((9, "python", 4_000),))
    look_like(monkeypatch, always(taken))

    async def scenario() -> None:
        one = Cards(1.0, lambda line: None)
        slot = one.share(CardUsage(lambda sample: None, lambda line: None, lambda text: None))
        slot.engine({0}, {7})
        assert await slot.taken_since([CARD]) == "", "in a container pids are others"
        sample = GpuSample(0, 5_615, 22_527, None, None, None, 0.0, users=((7, 5_000),))
        one._samples([sample])
        assert slot.others_mib == {0: 615}
        assert await slot.taken_since([CARD]) == "python (pid 9) has allocated 4000 MiB of GPU 0"
        assert slot.others() == {0: 4_000}, "what a degraded plan is kept with"

        def hung() -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(cards.nvml, "read_gpus", hung)
        assert await slot.taken_since([CARD]) == ""

    asyncio.run(scenario())


def test_the_readings_of_the_last_minutes_are_of_all_cards() -> None:
    async def scenario() -> dict[str, Any]:
        one = Cards(1.0, lambda line: None)
        one._samples([GpuSample(n, 0, 22_527, 80 + n, 60, 200.0, 5.0) for n in range(2)])
        return one.recent(6.0)

    found = asyncio.run(scenario())
    assert found["card_age_s"] == [1.0]
    assert {gpu: card["utilization"] for gpu, card in found["cards"].items()} == {
        "0": [80],
        "1": [81],
    }
