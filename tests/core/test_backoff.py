"""The delay before the next attempt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from caovand.core.lifecycle.backoff import MAX_S, SPREAD, delay

ATTEMPTS = st.integers(1, 10**6)
CHANCES = st.floats(0, 1, exclude_max=True)


def test_delays_double_from_one_second_to_five_minutes() -> None:
    assert [delay(n, 0.5) for n in range(1, 12)] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


@given(ATTEMPTS, CHANCES)
def test_chance_moves_a_delay_by_at_most_a_tenth(attempt: int, chance: float) -> None:
    middle = delay(attempt, 0.5)
    assert middle * (1 - SPREAD) <= delay(attempt, chance) <= middle * (1 + SPREAD)


@given(ATTEMPTS, CHANCES)
def test_delays_never_shrink_while_failures_go_on(attempt: int, chance: float) -> None:
    assert delay(attempt + 1, chance) >= delay(attempt, chance) > 0
    assert delay(attempt, chance) <= MAX_S * (1 + SPREAD)
