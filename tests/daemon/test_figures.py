"""A slot's figures: one scrape for everybody, accumulated over its engines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caovand.core.figures.counters import Counters, Reading
from caovand.core.healing.failure import Finding
from caovand.core.health.observation import ProgressCounters
from caovand.core.lifecycle.events import Exited, Planned, Restart, TimePassed
from caovand.core.lifecycle.state import Ending, Snapshot, State
from caovand.core.plan import Plan
from caovand.daemon.engine import figures as figures_module
from caovand.daemon.engine.figures import SlotFigures


def reading(tokens: float, at: float, running: int = 1) -> Reading:
    progress = ProgressCounters(tokens, 0, 0, 0, 0, running, 0, 0, 0, None, at)
    return Reading(progress, Counters(generation_tokens=tokens))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    time = [0.0]
    monkeypatch.setattr(figures_module, "now", lambda: time[0])
    return time


def test_a_late_scrape_of_an_engine_that_is_gone_counts_nothing(clock: list[float]) -> None:
    one = SlotFigures()
    first = one.engine()
    first(reading(100, 1.0))
    one.gone()
    first(reading(150, 2.0))
    assert one.describe()["running"] is None
    second = one.engine()
    first(reading(170, 3.0))
    second(reading(30, 4.0))
    clock[0] = 5.0
    document = one.describe()
    assert document["totals"]["generation_tokens"] == 130
    assert (document["running"], document["age_s"]) == (1, 1.0)


def test_an_engine_is_idle_after_two_readings_without_a_request() -> None:
    one = SlotFigures()
    take = one.engine()
    take(reading(100, 1.0, running=0))
    assert not one.idle, "something may have come and gone before"
    take(reading(130, 2.0, running=0))
    assert not one.idle, "something came and went"
    take(reading(130, 3.0, running=0))
    assert one.idle
    take(reading(130, 4.0, running=1))
    assert not one.idle
    take(reading(130, 5.0, running=0))
    assert one.idle
    one.gone()
    assert not one.idle


def test_each_start_after_the_first_is_counted_under_what_ended_the_one_before() -> None:
    one, plan, finding = SlotFigures(), Plan("m", {}, {}), Finding("hang", "no progress")
    starting = Snapshot(state=State.STARTING, plan=plan)
    planned = Planned(at=0.0, inspection=1, plan=plan)
    one.lived(starting, planned, replace(starting, spawned=True, spawns=1))
    assert one.restarts == {}
    for spawns, event in ((1, Exited(at=1.0, generation=1, finding=finding)), (2, Restart(at=2.0))):
        found = finding if isinstance(event, Exited) else None
        lives = Snapshot(state=State.SERVING, plan=plan, spawned=True, spawns=spawns)
        ending = replace(lives, state=State.RECYCLING, ending=Ending("start"), finding=found)
        one.lived(lives, event, ending)
        one.lived(ending, TimePassed(at=3.0), ending)
        before = replace(starting, spawns=spawns)
        one.lived(before, planned, replace(before, spawned=True, spawns=spawns + 1))
    assert one.describe()["restarts"] == {"hang": 1, "operator": 1}
