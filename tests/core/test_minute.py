"""The contents of a history minute."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.figures.counters import NOTHING, Counters
from caovand.core.figures.histogram import Histogram
from caovand.core.figures.minute import Tally, card_minute
from caovand.core.figures.track import TrackPoint
from caovand.core.health.observation import GpuSample


def point(at: float, tokens: float = 0.0, **more: float) -> TrackPoint:
    return TrackPoint(at, Counters(generation_tokens=tokens), **more)


@given(st.lists(st.integers(0, 500), min_size=1, max_size=30), st.integers(0, 29))
def test_minutes_that_follow_each_other_add_up(tokens: list[int], cut: int) -> None:
    """However the looks fall into minutes, nothing is counted twice and nothing is lost."""
    total, found, tally = 0.0, 0.0, Tally()
    for number, more in enumerate(tokens):
        total += more
        tally = tally.add(5.0, True, point(float(number), total))
        if number == cut:
            found += tally.minute("m", 0, Counters(generation_tokens=total)).generation_tokens
            tally = Tally(Counters(generation_tokens=total), latest_at=tally.latest_at)
    found += tally.minute("m", 60, Counters(generation_tokens=total)).generation_tokens
    assert found == total == sum(tokens)


def test_a_minute_has_means_the_largest_share_and_how_long_it_served() -> None:
    first = point(1.0, running=1.0, waiting=0.0, kv_cache_usage=0.25)
    second = point(6.0, running=4.0, waiting=1.0, kv_cache_usage=0.5)
    tally = Tally(NOTHING).add(0.0, True, first).add(5.0, True, first)
    tally = tally.add(5.0, True, second).add(10.0, False, None)
    times = Histogram((0.1, 1.0), (4.0, 0.0, 0.0), 0.2)
    total = Counters(requests=4, drafts=2, accepted=(2.0, 1.0), first_token_s=times)
    found = tally.minute("main", 120, total)
    assert (found.slot, found.at, found.seconds, found.up_s) == ("main", 120, 20.0, 10.0)
    assert (found.running, found.waiting, found.kv_cache_usage) == (2.5, 0.5, 0.5)
    assert (found.requests, found.drafts, found.accepted_tokens) == (4, 2, 3)
    assert found.first_token_p50_s == pytest.approx(0.05)
    assert found.token_p50_s is None


def test_a_minute_without_an_engine_knows_nothing_of_one() -> None:
    found = Tally(NOTHING).add(60.0, False, None).minute("main", 0, NOTHING)
    assert (found.up_s, found.generation_tokens) == (0.0, 0.0)
    assert (found.running, found.kv_cache_usage, found.first_token_p50_s) == (None, None, None)


SAMPLE = GpuSample(0, 100, 1000, 40, 60, 200.0, 1.0, energy_j=1000.0)


def test_a_minute_of_a_card_counts_its_energy_from_the_sample_before() -> None:
    samples = [
        replace(SAMPLE, at=6.0, used_mib=300, temperature=70, energy_j=2000.0),
        replace(SAMPLE, at=11.0, utilization=60, power_w=None, energy_j=2600.0, throttled="heat"),
    ]
    found = card_minute(samples, SAMPLE, 60)
    assert found is not None
    assert (found.gpu, found.at, found.used_mib, found.temperature) == (0, 60, 300, 70)
    assert (found.utilization, found.power_w, found.energy_j) == (50, 200, 1600)
    assert found.throttled == 0.5


def test_a_card_without_a_sample_in_order_has_no_minute() -> None:
    assert card_minute([], SAMPLE, 60) is None
    assert card_minute([replace(SAMPLE, fault="GPU is lost")], None, 60) is None
    found = card_minute([GpuSample(0, 1, 2, None, None, None, 0.0)], None, 60)
    assert found is not None
    assert (found.temperature, found.power_w, found.energy_j) == (None, None, None)
