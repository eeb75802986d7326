"""A measurement's progress and remaining time."""

from __future__ import annotations

import pytest

from caovand.lab.core.bench.progress import BenchProgress
from caovand.lab.core.bench.record import TimedAnswer

ROUNDS = [(100, 1), (100, 2), (800, 1)]


def answered(prompt: int, read_s: float, generated_s: float) -> TimedAnswer:
    return TimedAnswer(5.0, (5.0 + read_s, 5.0 + read_s + generated_s), prompt, 10)


def test_tokens_count_as_they_are_read_and_generated() -> None:
    found = BenchProgress(ROUNDS, 10)
    assert found.percent() == 0
    assert found.percent(1) == 100 * 100 // 1140
    assert found.percent(1, 1) == 100 * 110 // 1140
    found.ended([answered(100, 1.0, 2.0)])
    assert found.percent() == found.percent(0, 0) == 100 * 110 // 1140
    assert found.percent(2, 1) == 100 * 320 // 1140
    found.ended([answered(100, 2.0, 2.0)] * 2)
    found.ended([answered(800, 8.0, 2.0)])
    assert found.percent() == 100


def test_the_rest_is_read_at_the_pace_so_far_and_generated_round_by_round() -> None:
    found = BenchProgress(ROUNDS, 10)
    assert found.left_s() is None
    found.ended([answered(100, 1.0, 3.0)])
    assert found.left_s() == pytest.approx(1000 / 100 + 2 * 3.0)
    assert found.left_s(1) == pytest.approx(900 / 100 + 2 * 3.0)
    found.ended([answered(100, 2.0, 3.0), answered(100, 5.0, 0.0)])
    assert found.left_s() == pytest.approx(800 * 6 / 300 + (3.0 + 0.0) / 2)
    found.ended([answered(800, 8.0, 2.0)])
    assert found.left_s() == 0


def test_a_round_that_warms_up_tells_nothing_of_the_others() -> None:
    found = BenchProgress(ROUNDS, 10)
    found.ended([answered(100, 90.0, 3.0)], warm_up=True)
    assert found.percent() == 100 * 110 // 1140
    assert found.left_s() is None
    found.ended([answered(100, 2.0, 3.0)] * 2)
    assert found.left_s() == pytest.approx(800 * 2 / 200 + 3.0)
