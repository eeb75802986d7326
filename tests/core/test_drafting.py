"""Collapsed drafting, relative to the child's own past."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from caovand.core.health import drafting
from caovand.core.health.drafting import AcceptanceTrend
from tests.examples import examples

DRAFTS = 300.0
SPELL = drafting.FALLEN_INTERVALS
SHARES = st.floats(0, 1)


def seen(shares: Iterable[float], past: AcceptanceTrend | None = None) -> list[AcceptanceTrend]:
    """Each state on the way, up to a collapse."""
    state, states = past or AcceptanceTrend(), []
    for share in shares:
        state = state.after(DRAFTS, DRAFTS * share)
        states.append(state)
        if state.collapse(lookup_drafts=False):
            break
    return states


def usual(share: float) -> AcceptanceTrend:
    """After as many intervals as it takes to know what is usual."""
    return seen([share] * drafting.MIN_SHARES)[-1]


def test_acceptance_that_falls_from_70_to_1_percent_has_collapsed_after_three_minutes() -> None:
    states = seen([0.01] * 99, usual(0.7))
    assert len(states) == SPELL == 18
    assert states[-1].collapse(lookup_drafts=False) == (
        "1.0% of the drafts were accepted in 18 intervals, compared with 70% usually"
    )


def test_intervals_without_any_accepted_draft_are_part_of_the_fall() -> None:
    assert len(seen([0.0, 0.01] * 99, usual(0.7))) == SPELL
    assert len(seen([0.0] * 99, usual(0.7))) == drafting.BARREN_INTERVALS


def test_without_a_past_nothing_has_fallen() -> None:
    assert not seen([0.001] * 999)[-1].collapse(lookup_drafts=False)


def test_few_drafts_neither_count_nor_end_a_fall() -> None:
    falling = seen([0.01] * (SPELL - 1), usual(0.7))[-1]
    few = drafting.MIN_DRAFTS - 1
    idle = falling.after(few, 0).after(few, 20).after(0, 0)
    assert not idle.collapse(lookup_drafts=False)
    assert idle.after(DRAFTS, 3).collapse(lookup_drafts=False)


def test_an_engine_that_comes_back_by_itself_is_used_to_such_a_fall() -> None:
    """Drafts looked up in the prompt are nearly all right or nearly all wrong, by topic."""
    spells = [0.01] * (SPELL - 1) + [0.7]
    state = usual(0.7)
    for share in spells * 9 + [0.01] * 99:
        state = state.after(DRAFTS, DRAFTS * share)
        assert not state.collapse(lookup_drafts=False)


def test_drafts_looked_up_in_the_text_may_fall_but_not_to_nothing() -> None:
    fallen = seen([0.8] * 20 + [0.05] * 40)[-1]
    assert fallen.collapse(lookup_drafts=False)
    assert not fallen.collapse(lookup_drafts=True)
    none = seen([0.8] * 20 + [0.0] * 40)[-1]
    assert none.collapse(lookup_drafts=True)


@examples(300)
@given(st.floats(0.01, 1), st.lists(st.floats(0.11, 1), max_size=200))
def test_acceptance_within_a_tenth_of_its_best_never_collapses(
    best: float, shares: list[float]
) -> None:
    """A change of topic: from 0.7 to 0.3 and back, in any order."""
    assert not any(
        state.collapse(lookup_drafts=False) for state in seen(best * share for share in shares)
    )


@examples(300)
@given(st.lists(st.floats(0.2, 1), min_size=12, max_size=400), st.lists(SHARES, min_size=18))
def test_a_fall_under_a_tenth_of_the_least_before_collapses_however_it_varies(
    before: list[float], after: list[float]
) -> None:
    past = seen(before)[-1]
    states = seen((share * min(before) * 0.09 for share in after), past)
    assert states[-1].collapse(lookup_drafts=False)
    assert len(states) <= SPELL


@examples(300)
@given(st.lists(st.tuples(st.integers(0, 9999), st.integers(-9, 9999)), max_size=200))
def test_the_judgement_does_not_depend_on_how_well_a_model_drafts(
    intervals: list[tuple[int, int]],
) -> None:
    """The same drafts with half as many accepted fall at the same time."""
    one = half = AcceptanceTrend()
    for drafted, accepted in intervals:
        one, half = one.after(drafted, accepted), half.after(drafted, accepted / 2)
        assert bool(one.collapse(lookup_drafts=False)) == bool(half.collapse(lookup_drafts=False))


@examples(300)
@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(-1e9, 1e9)), max_size=100))
def test_any_counters_are_taken_and_little_is_kept(intervals: list[tuple[float, float]]) -> None:
    state = AcceptanceTrend()
    for drafted, accepted in intervals:
        state = state.after(drafted, accepted)
        assert len(state.shares) <= drafting.HISTORY
