"""Depths that the draft tuner suggests and moves to, on synthetic engines with a known optimum."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.figures.counters import Counters
from caovand.core.figures.histogram import Histogram
from caovand.core.figures.track import TrackPoint
from caovand.core.tuning import moves
from caovand.core.tuning.evidence import (
    CONTEXT_BANDS,
    DEPTHS,
    KEPT_STEPS,
    Measurements,
    band_of,
    context_after,
    measure_steps,
)
from caovand.core.tuning.model import ENOUGH_STEPS, estimate
from caovand.core.tuning.moves import COOL_DOWN_S, MIN_GAIN, REST_S, Moment, judge, move, suggestion
from caovand.core.tuning.record import (
    MAX_MOVES,
    MAX_RECORDS,
    TuningRecord,
    begin,
    from_document,
    to_document,
)

START = 3  # what the policy chooses
DAY_S = 86400.0


class Synthetic:
    """An engine with a chance of acceptance by position and a time a step by depth."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        first, falls = self.random.uniform(0.35, 0.95), self.random.uniform(0.85, 1.0)
        self.chances = [first * falls**position for position in range(DEPTHS[-1])]
        self.base, self.share = self.random.uniform(0.01, 0.1), self.random.uniform(0.02, 0.25)

    def accepted(self, depth: int) -> list[float]:
        shares, chance = list[float](), 1.0
        for one in self.chances[:depth]:
            chance *= one
            shares.append(chance)
        return shares

    def per_s(self, depth: int) -> float:
        return (1 + sum(self.accepted(depth))) / (self.base * (1 + self.share * depth))

    def noise(self) -> float:
        return self.random.gauss(1.0, 0.05)

    def measured(self, depth: int) -> Measurements:
        """The steps of one trial: their time and their acceptance have 5 % noise each."""
        seconds = ENOUGH_STEPS * self.base * (1 + self.share * depth) * self.noise()
        luck = self.noise()
        accepted = tuple(min(share * luck, 1.0) * ENOUGH_STEPS for share in self.accepted(depth))
        return Measurements(ENOUGH_STEPS, seconds, accepted)


def tuned(engine: Synthetic) -> tuple[int, int]:
    """The depth at which the tuner stays within a day, and its moves; those back count too."""
    record, made = begin("b", START), 0
    for hour in range(24):
        record = record.with_steps(record.depth, 0, engine.measured(record.depth))
        record = judge(record).record
        step = move(record, hour * 3600.0)
        made += step.record.depth != record.depth
        if not step.text and not record.trying and record.depth == step.record.depth:
            break
        record = step.record
    return record.depth, made


def test_applied_moves_end_within_5_percent_of_the_best_depth_after_four_at_most() -> None:
    near, seeds = 0, 1000
    for seed in range(seeds):
        engine = Synthetic(seed)
        depth, made = tuned(engine)
        assert made <= MAX_MOVES
        near += engine.per_s(depth) >= 0.95 * max(map(engine.per_s, DEPTHS))
    assert near >= 0.95 * seeds


def test_who_follows_the_suggestions_by_hand_gets_there_too() -> None:
    near, seeds = 0, 400
    for seed in range(seeds):
        engine, record, depth = Synthetic(seed), begin("b", START), START
        for _ in range(4):
            record = record.with_steps(depth, 0, engine.measured(depth))
            found = suggestion(record, depth)
            assert found is not None
            if found.best == depth:
                break
            depth = found.best
        near += engine.per_s(depth) >= 0.95 * max(map(engine.per_s, DEPTHS))
    assert near >= 0.95 * seeds


def seen(step_s: float, accepted: tuple[float, ...], steps: float = 1000.0) -> Measurements:
    return Measurements(steps, steps * step_s, tuple(share * steps for share in accepted))


def record_of(*entries: tuple[int, Measurements], band: int = 0) -> TuningRecord:
    return replace(begin("b", START), evidence={(depth, band): one for depth, one in entries})


def test_drafts_that_are_never_accepted_are_suggested_to_be_turned_off() -> None:
    found = suggestion(record_of((3, seen(0.02, (0.0, 0.0, 0.0)))), 3)
    assert found is not None
    assert (found.best, found.basis.tokens, found.basis.depths) == (0, 1000, (3,))
    assert found.text == (
        "drafting depth 0 instead of 3: +43% expected (1,000 tokens measured at depth 3)"
    )


def test_a_drafters_depth_is_compared_with_every_smaller_one() -> None:
    accepted = tuple(0.7**position for position in range(1, 16))
    dear, cheap = seen(0.06, accepted), seen(0.03, accepted[:7])
    drafter = replace(record_of((15, dear)), own=15, depth=15, home=15)
    first = suggestion(drafter, 15)
    assert first is not None
    assert 0 < first.gain < 0.2  # a draft of a block is assumed to cost little
    assert first.best < 15
    unsure = replace(drafter, evidence={(15, 0): seen(0.06, (1.0,) * 15)})
    trial = suggestion(unsure, 15)
    assert trial is not None
    assert (trial.best, trial.trial) == (7, True)
    both = replace(drafter, evidence={(15, 0): dear, (7, 0): cheap})
    found = suggestion(both, 15)
    assert found is not None
    assert found.best <= 7
    assert found.gain > 0.5
    assert len(found.describe()["tokens_per_s"]) == 16
    assert suggestion(record_of((15, dear)), 15) is None  # deeper than a head's


def test_a_drafter_that_loses_on_trial_goes_back_to_what_it_was_trained_for() -> None:
    accepted = tuple(0.95**position for position in range(1, 16))
    fast, slow = seen(0.03, accepted), seen(0.029, accepted[:7])
    drafter = replace(record_of((15, fast), (7, slow)), own=15, depth=7, home=15)
    assert judge(drafter).text == ""
    assert move(drafter, 0.0).record.depth == 15


def test_the_step_measured_at_two_depths_decides_not_the_assumed_one() -> None:
    accepted = (0.9, 0.8, 0.7, 0.6)
    cheap = record_of((3, seen(0.0200, accepted[:3])), (4, seen(0.0201, accepted)))
    dear = record_of((3, seen(0.02, accepted[:3])), (4, seen(0.04, accepted)))
    deeper, same = suggestion(cheap, 3), suggestion(dear, 3)
    assert deeper is not None
    assert same is not None
    assert deeper.best == 6
    assert same.best <= 3


def test_a_draft_that_costs_most_of_a_step_is_no_surprise() -> None:
    """As of a tiny model: measured were 5.8 ms without drafts and 20.1 ms with 3."""
    found = estimate(record_of((0, seen(0.0058, ())), (3, seen(0.0201, (0.0,) * 3))).evidence, 0)
    assert found is not None
    between = 1 / (0.0058 + (0.0201 - 0.0058) / 3)
    assert found.per_s[1] == pytest.approx(between, rel=0.1)
    assert list(found.per_s) == sorted(found.per_s, reverse=True)


def test_a_gain_within_the_noise_is_not_suggested() -> None:
    found = suggestion(record_of((2, seen(0.0200, (0.5, 0.2))), (1, seen(0.0176, (0.5,)))), 2)
    assert found is not None
    assert (found.best, found.gain) == (2, 0.0)
    assert found.text == "drafting depth 2 is the fastest (3,200 tokens measured at depth 1, 2)"


@pytest.mark.parametrize(
    ("depth", "entries"),
    [
        (3, []),
        (3, [(3, seen(0.02, (0.9, 0.8, 0.7), steps=ENOUGH_STEPS - 1))]),
        (0, [(0, seen(0.02, ()))]),
        (3, [(2, seen(0.02, (0.9, 0.8)))]),
        (8, [(8, seen(0.02, (0.9,) * 8))]),
    ],
    ids=["nothing", "too few steps", "no draft ever", "another depth only", "not modelled"],
)
def test_too_little_is_no_ground_for_a_suggestion(
    depth: int, entries: list[tuple[int, Measurements]]
) -> None:
    assert suggestion(record_of(*entries), depth) is None


@pytest.mark.parametrize(("depth", "tried"), [(3, 1), (1, 3)])
def test_one_depth_that_seems_the_best_is_compared_with_another(depth: int, tried: int) -> None:
    accepted = (0.7, 0.5, 0.3) if depth == 3 else (0.14,)
    found = suggestion(record_of((depth, seen(0.02, accepted))), depth)
    assert found is not None
    assert (found.trial, found.best, found.gain) == (True, tried, 0.0)
    assert found.text.startswith(f"try drafting depth {tried} to measure what a draft costs (")


def test_contexts_of_other_lengths_are_not_compared_with_each_other() -> None:
    """Depth 1 met long contexts only, whose steps take longer at any depth."""
    short, long = seen(0.02, (0.9, 0.8, 0.7)), seen(0.06, (0.9,))
    record = replace(begin("b", START), evidence={(3, 0): short, (1, 2): long})
    found = suggestion(record, 3)
    assert found is not None
    assert found.basis.depths == (3,)


def test_the_context_from_which_drafts_lose_is_named() -> None:
    record = replace(
        begin("b", START),
        evidence={
            (3, 0): seen(0.02, (0.9, 0.8, 0.7), 9000), (0, 0): seen(0.015, ()),
            (3, 2): seen(0.08, (0.3, 0.1, 0.0)), (0, 2): seen(0.04, ()),
        },
    )  # fmt: skip
    found = suggestion(record, 3)
    assert found is not None
    assert found.best > 0
    assert found.loses_from == CONTEXT_BANDS[2]
    assert "drafts lose in contexts from 32,768 tokens on" in found.text
    assert [entry["from"] for entry in found.describe()["by_context"]] == [0, 32768]


# -- what counts ------------------------------------------------------------------------------


def point(
    steps: float, running: float = 1, *, prompts: float = 0, tokens: float = 0, outputs: float = 0
) -> TrackPoint:
    """So many steps and outputs until then, and prompts that were read, with their tokens."""
    total = Counters(
        steps=steps,
        drafts=steps,
        accepted=(0.0,),
        prompt_tokens=tokens,
        generation_tokens=outputs or steps,
        first_token_s=Histogram((1.0,), (prompts, 0.0), prompts * 0.1),
        step_s=Histogram((1.0,), ((outputs or steps) - prompts, 0.0), steps * 0.02),
    )
    return TrackPoint(steps, total, running)


def test_only_steps_of_one_request_alone_count() -> None:
    found = measure_steps(point(0), point(100), 5.0, 105.0)
    assert found is not None
    assert (found[0], found[1].steps, found[1].step_s) == (0, 100, pytest.approx(0.02))
    assert context_after(5.0, point(0), point(100, running=2)) is None
    assert context_after(5.0, point(0, running=2), point(100)) is None
    # Two outputs in one step, though there was one request at each scrape.
    assert context_after(5.0, point(0), point(100, outputs=101)) is None
    brief = point(100, prompts=1, tokens=300, outputs=108)
    assert context_after(50_000.0, point(0), brief) is None
    assert measure_steps(point(0), point(100), 5.0, None) is None
    assert measure_steps(point(5), point(5), 5.0, 5.0) is None


def test_the_context_is_the_prompt_and_what_was_generated_since() -> None:
    idle, begun = point(0, 0), point(10, prompts=1, tokens=9000)
    assert context_after(None, idle, begun) == 9000
    full_of_states = replace(begun, kv_cache_usage=0.5)  # of a hybrid model: more with each draft
    assert context_after(None, idle, full_of_states) == 9000
    assert context_after(9000.0, begun, point(99, prompts=1, tokens=9000)) == 9089
    assert context_after(None, point(0), point(100)) is None  # its prompt was not seen


def test_of_several_prompts_the_mean_counts_unless_a_long_one_may_be_under_way() -> None:
    three = {"prompts": 3, "tokens": 2100}
    assert context_after(None, point(0, 0), point(30, 0, **three)) == 700
    assert context_after(None, point(0, 0), point(30, **three)) == 700  # all are short
    long = {"prompts": 3, "tokens": 30_600}
    assert context_after(None, point(0, 0), point(30, **long)) is None
    assert context_after(None, point(0, 0), point(30, 0, **long)) == 10_200
    # The next one is still being read.
    assert context_after(None, point(0, 0), point(30, prompts=1, tokens=12_000)) == 12_000


def test_steps_of_two_requests_count_if_both_are_of_one_band() -> None:
    before, after = point(0), point(250, prompts=1, tokens=500)
    assert measure_steps(before, after, 300.0, 500.0) is not None
    assert measure_steps(before, after, 60_000.0, 500.0) is None
    assert measure_steps(before, after, None, 500.0) is None
    assert measure_steps(point(0, 0), after, 60_000.0, 500.0) is not None


def test_a_context_belongs_to_the_last_band_that_it_reaches() -> None:
    assert [band_of(context) for context in (0, 8191, 8192, 32768, 1e9)] == [0, 0, 1, 2, 2]
    found = measure_steps(point(0), point(100), 39_900.0, 40_000.0)
    assert found is not None
    assert found[0] == 2


def test_old_steps_count_less() -> None:
    before = seen(0.02, (0.9,), KEPT_STEPS)
    after = before.plus(seen(0.04, (0.5,), KEPT_STEPS))
    assert (after.steps, after.step_s) == (KEPT_STEPS, pytest.approx(0.04))
    half = before.plus(seen(0.04, (0.5,), KEPT_STEPS / 2))
    assert (half.steps, half.step_s) == (KEPT_STEPS, pytest.approx(0.03))
    assert half.accepted == (pytest.approx(0.7 * KEPT_STEPS),)


# -- moves ------------------------------------------------------------------------------------

FAST = (3, seen(0.02, (0.9, 0.8, 0.7)))


def on_trial(depth: int, yields: Measurements) -> TuningRecord:
    record = replace(record_of(FAST), depth=depth, moves=(0.0,))
    return record.with_steps(depth, 0, yields)


def test_a_depth_on_trial_stays_if_it_is_faster() -> None:
    step = judge(on_trial(5, seen(0.02, (0.9, 0.8, 0.7, 0.6, 0.5))))
    assert (step.record.home, step.record.trying) == (5, False)
    assert step.text.startswith("drafting depth 5 yields ")
    assert step.text.endswith(": it stays")


def test_a_depth_on_trial_that_is_slower_is_left_for_the_one_before() -> None:
    record = on_trial(5, seen(0.2, (0.9, 0.8, 0.7, 0.6, 0.5)))
    assert judge(record).record == record
    step = move(record, 9.0)
    assert (step.record.depth, step.record.trying) == (3, False)
    assert step.text.endswith(": back to 3")


def test_a_trial_lasts_until_enough_steps_were_measured() -> None:
    record = on_trial(5, seen(0.2, (0.9,) * 5, ENOUGH_STEPS - 1))
    assert (judge(record).text, move(record, 9.0).text) == ("", "")
    assert (
        moves.trial_progress(record, 5) == "drafting depth 5 on trial: 999 of 1,000 steps measured"
    )


def test_a_trial_that_cannot_be_compared_ends_all_the_same() -> None:
    """Long contexts alone, where the depth before met short ones; or never one request alone."""
    begun = replace(record_of(FAST), depth=5, moves=(0.0,))
    long = begun.with_steps(5, 2, seen(0.02, (0.9,) * 5, 4999))
    assert not move(long, 9.0).text
    assert moves.trial_progress(long, 5) == "drafting depth 5 on trial: 0 of 1,000 steps measured"
    for record, at in ((long.with_steps(5, 2, seen(0.02, (0.9,) * 5, 1)), 9.0), (begun, 3 * DAY_S)):
        step = move(record, at)
        assert step.record.depth == 3
        assert step.text.endswith("had too few requests comparable with those at 3: back to 3")


def test_the_way_back_is_open_when_no_move_is_left() -> None:
    record = on_trial(5, seen(0.2, (0.9, 0.8, 0.7, 0.6, 0.5)))
    step = move(replace(record, moves=(5.0, 6.0, 7.0, 8.0)), 9.0)
    assert step.record.depth == 3
    assert not move(step.record, 10.0).text


def test_a_depth_that_failed_is_not_tried_again() -> None:
    record = record_of((3, seen(0.02, (0.0, 0.0, 0.0))))
    assert move(record, 0.0).record.depth == 0
    failed = move(record, 0.0).record.failed(1.0)
    assert (failed.depth, failed.trying) == (3, False)
    assert move(failed, 2.0).record.depth not in (0, 3)


def test_what_could_not_be_planned_costs_no_move() -> None:
    tried = move(record_of((3, seen(0.02, (0.0, 0.0, 0.0)))), 0.0).record
    assert tried.refuse_unplanned().moves == ()
    assert tried.refuse_unplanned().refused == {0}


READY = Moment(stable=True, failed_s=COOL_DOWN_S, idle_s=900, quiet_s=900)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"failed_s": 600.0}, "an engine failed: no change for 50 min"),
        ({"stable": False}, "the engine has not served for [watch] stable_after_s yet"),
        ({"idle_s": 899.0}, "waiting for 900 s without a request"),
    ],
)
def test_a_move_waits_for_a_good_moment(change: dict[str, float], why: str) -> None:
    assert READY.obstacle == replace(READY, failed_s=None).obstacle == ""
    assert replace(READY, **change).obstacle == why  # type: ignore[arg-type]


STEPS = st.floats(0, 5000)
SEEN = st.builds(
    lambda steps, step_s, shares: seen(step_s, tuple(sorted(shares, reverse=True)), steps),
    st.floats(1, 50_000), st.floats(1e-4, 10.0), st.lists(st.floats(0, 1), max_size=6),
)  # fmt: skip
RECORDS = st.builds(
    lambda entries, depth, home, times, refused: TuningRecord(
        "b", START, depth, home, entries, frozenset(refused), tuple(sorted(times)), 0.0
    ),
    st.dictionaries(st.tuples(st.sampled_from(DEPTHS), st.integers(0, 2)), SEEN),
    st.sampled_from(DEPTHS), st.sampled_from(DEPTHS),
    st.lists(st.floats(0, 30 * DAY_S), max_size=MAX_MOVES), st.sets(st.sampled_from(DEPTHS)),
)  # fmt: skip


@given(RECORDS, st.floats(0, 60 * DAY_S))
def test_any_decision_is_sound(record: TuningRecord, at: float) -> None:
    kept, step = judge(record), move(record, at)
    assert bool(kept.text) == (kept.record != record)
    assert bool(step.text) == (step.record.depth != record.depth)
    assert not (kept.text and step.text)
    assert step.record.depth in DEPTHS
    assert len(step.record.moves) <= MAX_MOVES
    if step.text and step.record.depth != record.home:
        basis = estimate(record.evidence, record.home)
        assert basis is not None
        assert step.record.depth not in record.refused
        worth = basis.gain(step.record.depth, record.home) >= MIN_GAIN
        assert worth or len(basis.depths) == 1
        assert moves.steps_left(record, at) >= 1


@given(RECORDS)
def test_a_record_outlives_the_daemon(record: TuningRecord) -> None:
    document = json.loads(json.dumps(to_document([record], 7.0)))
    found = from_document(document)
    assert found is not None
    again = found[0]["b"]
    assert (again.depth, again.home, again.refused) == (record.depth, record.home, record.refused)
    assert again.evidence.keys() == record.evidence.keys()
    assert to_document([again], found[1]) == document


def test_the_document_is_bounded() -> None:
    one = seen(0.123456789, (0.123456789,) * 8)
    evidence = {(depth, band): one for depth in range(9) for band in range(len(CONTEXT_BANDS))}
    records = [replace(begin(f"{n:016x}", 3), evidence=evidence, used=float(n)) for n in range(20)]
    document = to_document(records, 0.0)
    assert [row["used"] for row in document["records"]] == [12.0 + n for n in range(MAX_RECORDS)]
    assert len(json.dumps(document)) < 64 << 10


def test_a_document_with_numbers_beyond_all_floats_is_refused() -> None:
    document = to_document([begin("b", 3)], 0.0)
    assert from_document({**document, "failed_at": 10**400}) is None
    assert from_document({**document, "failed_at": float("nan")}) is None
    assert from_document(document) is not None


def test_moves_of_another_week_do_not_count() -> None:
    record = replace(begin("b", 3), moves=(0.0, 1.0, 2.0, 3.0))
    assert moves.steps_left(record, 10.0) == 0
    assert moves.steps_left(record, REST_S + 10.0) == MAX_MOVES
