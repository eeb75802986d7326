"""When a plan degraded because of others' memory is worth a restart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caovand.core.facts.occupancy import Used
from caovand.core.figures.counters import Counters, Reading
from caovand.core.figures.track import Track, follow
from caovand.core.health.observation import ProgressCounters
from caovand.core.plan import Plan, Taken
from caovand.daemon.memory_freed import MemoryFreed
from caovand.daemon.tuning import Serving

QUIET_S = 60.0
BUSY, FREE = {0: 4_615}, {0: 615}
DEGRADED = Plan("m", {}, {}, taken=(Taken("gmu-down", "0.943"),), others_mib=BUSY)
STABLE = Serving(DEGRADED, 1, replanning=False, stable=True, probed_at=float("-inf"))


class Engine:
    """One that is looked after every 20 s."""

    def __init__(self) -> None:
        self.room, self.track, self.at, self.tokens = MemoryFreed(), Track(), 0.0, 0.0

    def look(
        self,
        besides: Used | None = FREE,
        serving: Serving | None = STABLE,
        *,
        running: float = 0,
        tokens: float = 0,
    ) -> bool:
        self.at += 20.0
        self.tokens += tokens
        progress = ProgressCounters(0, 0, 0, 0, 0, running, 0, 0, 0, None, self.at)
        counted = Counters(generation_tokens=self.tokens)
        self.track = follow(self.track, Reading(progress, counted))
        return self.room.poll(serving, self.track, besides, QUIET_S)


def test_the_full_plan_is_tried_once_others_are_gone_and_nobody_has_asked_for_a_while() -> None:
    one = Engine()
    assert [one.look() for _ in range(5)] == [False, False, False, True, True]


def test_a_request_begins_the_quiet_time_anew() -> None:
    one = Engine()
    assert not any(one.look() for _ in range(3))
    assert not one.look(running=1)
    assert not one.look(tokens=10), "one that came and went between two looks"
    assert [one.look() for _ in range(3)] == [False, False, True]


def test_what_caovan_itself_asks_for_is_no_request() -> None:
    one = Engine()
    probed = [replace(STABLE, probed_at=at) for at in (30.0, 50.0, 70.0)]
    assert [one.look(serving=serving, tokens=5) for serving in (STABLE, *probed)][-1]


@pytest.mark.parametrize(
    ("besides", "serving"),
    [
        (BUSY, STABLE),
        ({0: 4_400}, STABLE),
        (None, STABLE),
        (FREE, None),
        (FREE, replace(STABLE, stable=False)),
        (FREE, replace(STABLE, replanning=True)),
        (FREE, replace(STABLE, plan=replace(DEGRADED, taken=()))),
        (FREE, replace(STABLE, plan=replace(DEGRADED, others_mib={}))),
        (FREE, replace(STABLE, plan=replace(DEGRADED, others_mib=FREE))),
    ],
)
def test_nothing_else_is_a_reason(besides: Used | None, serving: Serving | None) -> None:
    one = Engine()
    assert not any(one.look(besides, serving) for _ in range(8))
