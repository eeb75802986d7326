"""Figures: counters of several engines add up, and the displayed values are correct."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.facts.forecast import MemoryEstimate, MemoryPart, RankForecast
from caovand.core.figures import cards, track
from caovand.core.figures.counters import NAMES, NOTHING, Counters, Reading
from caovand.core.figures.histogram import Histogram
from caovand.core.figures.memory import by_card
from caovand.core.figures.track import RECENT_S, STALE_S, Track
from caovand.core.health.observation import GpuSample, ProgressCounters
from caovand.core.reporting import wire
from caovand.core.reporting.wire import Reply

BOUNDS = (0.1, 0.2, 0.5, 1.0)
COUNTS = st.integers(0, 1000).map(float)


def histogram(values: list[float]) -> Histogram:
    """The histogram of these observations."""
    counts = [0.0] * (len(BOUNDS) + 1)
    for value in values:
        counts[sum(value > bound for bound in BOUNDS)] += 1
    return Histogram(BOUNDS, tuple(counts), sum(values))


HISTOGRAMS = st.lists(st.floats(0, 2).map(lambda x: round(x, 2)), max_size=5).map(histogram)
COUNTERS = st.builds(
    Counters,
    **{name: COUNTS for name in NAMES if not name.endswith("_s") and name != "accepted"},
    accepted=st.lists(COUNTS, max_size=3).map(tuple),
    first_token_s=HISTOGRAMS,
    token_s=HISTOGRAMS,
    step_s=HISTOGRAMS,
)


def reading(counters: Counters, at: float, running: float = 0.0) -> Reading:
    """A scrape at `at` seconds."""
    return Reading(ProgressCounters(0, 0, 0, 0, 0.5, running, 1.0, 0, 0, None, at), counters)


def same(one: Counters, other: Counters) -> bool:
    """Whether two are the same but for rounding and positions that nothing was accepted at."""

    def flat(counters: Counters) -> list[float]:
        found = [getattr(counters, name) for name in NAMES]
        values: list[float] = []
        for value in found:
            if isinstance(value, Histogram):
                values += [*value.counts, value.sum] if value.count else []
            elif isinstance(value, tuple):
                values += [*value, *[0.0] * (8 - len(value))]
            else:
                values.append(value)
        return values

    return flat(one) == pytest.approx(flat(other))


def lives(engines: list[list[Counters]], *, known: bool) -> tuple[Track, Counters]:
    """The track of engines that count up by these steps, and what they counted in all."""
    now, found, at, whole = Track(), NOTHING, 0.0, NOTHING
    for steps in engines:
        found = NOTHING
        if known:
            now = track.begin_engine(now)
        for step in steps:
            found, whole, at = found.plus(step), whole.plus(step), at + 5.0
            now = track.follow(now, reading(found, at))
    return now, whole


@given(st.lists(st.lists(COUNTERS, max_size=3), max_size=3))
def test_totals_are_what_all_engines_counted(engines: list[list[Counters]]) -> None:
    now, whole = lives(engines, known=True)
    assert same(now.total, whole)


@given(st.lists(COUNTERS, min_size=1, max_size=4), st.lists(COUNTERS, min_size=1, max_size=4))
def test_a_counter_that_begins_anew_unannounced_adds_to_the_total(
    first: list[Counters], second: list[Counters]
) -> None:
    """The engine's first reading after that has less of something than the last one before."""
    first = [replace(first[0], steps=first[0].steps + second[0].steps + 1), *first[1:]]
    now, whole = lives([first, second], known=False)
    assert same(now.total, whole)


@given(st.lists(st.lists(COUNTERS, max_size=3), max_size=3))
def test_totals_never_fall(engines: list[list[Counters]]) -> None:
    now = Track()
    for number, steps in enumerate(engines):
        now = track.begin_engine(now)
        for step in steps:
            before = now.total
            now = track.follow(now, reading(step, float(number)))
            assert same(before.plus(now.total.since(before)), now.total)
            assert now.total.generation_tokens >= before.generation_tokens


def test_the_reading_rate_is_of_the_current_engines_long_prompts() -> None:
    def read(now: Track, reads: float, tokens: float, seconds: float) -> Track:
        before = now.last.counters if now.last else NOTHING
        more = Counters(reads=reads, read_tokens=tokens, read_seconds=seconds)
        return track.follow(now, reading(before.plus(more), 1.0))

    now = read(Track(), 20, 4000, 2.0)
    assert now.reading_rate is None, "each is as short as a step"
    now = read(read(read(now, 1, 21_000, 10.0), 0, 0, 0.0), 1, 9000, 2.0)
    assert now.reading_rate == 2500.0
    assert read(now, 0, 4500, 3.0).reading_rate == 2300.0, "of an engine that counts no reads"
    assert track.begin_engine(now).reading_rate is None


@given(st.lists(st.floats(0, 0.99), min_size=1, max_size=60), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values: list[float], share: float) -> None:
    found = histogram(values).quantile(share)
    true = next(v for n, v in enumerate(sorted(values), 1) if n >= share * len(values))
    bucket = sum(true > bound for bound in BOUNDS)
    assert found is not None
    assert (0.0, *BOUNDS)[bucket] <= found <= BOUNDS[bucket] + 1e-12


@given(HISTOGRAMS, st.floats(0, 1), st.floats(0, 1))
def test_quantiles_grow_with_the_share(found: Histogram, one: float, other: float) -> None:
    low, high = found.quantile(min(one, other)), found.quantile(max(one, other))
    assert (low is None) is (high is None) is (found.count == 0)
    if low is not None and high is not None:
        assert 0 <= low <= high + 1e-9 <= BOUNDS[-1] + 1e-9


def test_a_quantile_is_the_one_that_prometheus_computes() -> None:
    # histogram_quantile(0.5, ...) over le=0.1: 2, le=0.2: 6, le=0.5: 8, le=1: 8, le=+Inf: 8
    found = Histogram(BOUNDS, (2.0, 4.0, 2.0, 0.0, 0.0), 1.5)
    assert found.quantile(0.5) == pytest.approx(0.15)
    assert found.quantile(0.99) == pytest.approx(0.2 + 0.3 * (7.92 - 6) / 2)
    assert Histogram(BOUNDS, (0.0, 0.0, 0.0, 0.0, 3.0), 9.0).quantile(0.5) == 1.0


def test_buckets_of_another_release_begin_anew() -> None:
    other = Histogram((1.0,), (1.0, 0.0), 0.5)
    assert histogram([0.1, 0.3]).plus(other) == other
    assert other.since(histogram([0.1])) is None
    assert histogram([0.1]).plus(Histogram()) == histogram([0.1])


@given(st.lists(COUNTS.map(lambda n: Counters(generation_tokens=n)), min_size=2, max_size=80))
def test_rates_are_the_difference_of_the_latest_two_readings(steps: list[Counters]) -> None:
    now, _ = lives([steps], known=True)
    at = now.recent[-1].at
    document = track.describe(now, at)
    assert json.loads(json.dumps(document, allow_nan=False))
    assert document["per_s"]["generation_tokens"] == round(steps[-1].generation_tokens / 5, 2)
    assert document["interval_s"] == 5.0
    assert now.recent[0].at <= max(at - RECENT_S, 5.0)
    assert len(now.recent) <= RECENT_S / 5 + 2
    series = track.series(now, at)
    assert {len(values) for values in series.values()} == {len(now.recent) - 1}
    assert series["generation_tokens_per_s"][-1] == document["per_s"]["generation_tokens"]


def test_a_rate_goes_on_over_a_restart_and_nothing_is_shown_without_an_engine() -> None:
    now = track.follow(Track(), reading(Counters(generation_tokens=500), 10.0, running=2.0))
    assert track.describe(now, 10.0)["per_s"]["generation_tokens"] is None, "one reading is no rate"
    now = track.begin_engine(now)
    gone = track.describe(now, 12.0)
    assert (gone["running"], gone["kv_cache_usage"], gone["age_s"]) == (None, None, None)
    assert gone["totals"]["generation_tokens"] == 500
    now = track.follow(now, reading(Counters(generation_tokens=100), 30.0))
    document = track.describe(now, 31.0)
    assert document["per_s"]["generation_tokens"] == 5.0
    assert document["totals"]["generation_tokens"] == 600
    assert track.describe(now, 30.0 + STALE_S + 1)["running"] is None


def test_drafts_are_shown_by_position_and_per_step() -> None:
    one = Counters(drafts=100, drafted_tokens=300, accepted=(90.0, 70.0, 40.0))
    now = track.follow(track.follow(Track(), reading(NOTHING, 0.0)), reading(one, 5.0))
    found = track.describe(now, 5.0)["drafting"]
    assert found == {"accepted": [0.9, 0.7, 0.4], "tokens_per_step": 3.0}
    assert track.describe(Track(), 0.0)["drafting"] is None


def test_recent_latencies_and_steps_are_those_between_two_readings() -> None:
    slow = Counters(first_token_s=histogram([0.8] * 3), token_s=histogram([0.4]))
    fast = Counters(first_token_s=histogram([0.15] * 4), drafts=10, accepted=(9.0, 6.0))
    now = Track()
    total = NOTHING
    for at, more in enumerate((NOTHING, slow, fast, NOTHING)):
        total = total.plus(more)
        now = track.follow(now, reading(total, 5.0 * at))
    found = track.series(now, 15.0)
    assert found["first_token_p50_s"] == [0.75, 0.15, None]
    assert found["first_token_p99_s"] == [0.995, 0.199, None]
    assert found["token_p50_s"] == [0.35, None, None]
    assert found["tokens_per_step"] == [None, 2.5, None]


def sampled(at: float, *cards: int, power_w: float | None = 200.04) -> list[GpuSample]:
    """A round of samples of these cards."""
    return [GpuSample(index, 1, 2, 50, 60, power_w, at) for index in cards]


def test_recent_readings_of_cards_are_of_one_length_and_unknown_where_one_is_missing() -> None:
    rounds = cards.follow((), [])
    for round_ in (sampled(0.0, 0, 1), sampled(5.0, 1), sampled(10.0, 0, 1, power_w=None)):
        rounds = cards.follow(rounds, round_)
    found = cards.series(rounds, 11.0)
    assert found["card_age_s"] == [11.0, 6.0, 1.0]
    assert found["cards"]["0"]["power_w"] == [200.0, None, None]
    assert found["cards"]["1"]["power_w"] == [200.0, 200.0, None]
    assert found["cards"]["0"]["temperature"] == [60, None, 60]
    nothing = {"card_age_s": [], "cards": {}}
    assert cards.series(rounds, 11.0 + RECENT_S) == nothing, "nobody samples any more"


@pytest.mark.parametrize("sample_s", [0.5, 5.0, 60.0])
def test_five_minutes_of_eight_cards_fit_a_frame_however_often_they_are_sampled(
    sample_s: float,
) -> None:
    rounds: tuple[cards.SampleRound, ...] = ()
    now, total = Track(), NOTHING
    latencies = Counters(1234.5, 1234.5, first_token_s=histogram([0.123]), drafts=3, accepted=(2,))
    for number in range(int(2 * RECENT_S / sample_s)):
        rounds = cards.follow(rounds, sampled(number * sample_s, *range(8)))
    for number in range(120):
        total = total.plus(latencies)
        now = track.follow(now, reading(total, number * 5.0))
    document = {**track.series(now, 600.0), **cards.series(rounds, 600.0)}
    first, *_, last = document["card_age_s"]
    assert first >= RECENT_S - max(sample_s, 5.0), "as far back as the engine's"
    assert last <= max(sample_s, cards.STEP_S)
    assert len(wire.encode_reply(Reply("", document))) < wire.MAX_BYTES / 4


SAMPLE = GpuSample(1, 9000, 22_000, 50, 60, 200.0, 1.0, users=((7, 6000), (8, 2000), (9, 500)))
FORECAST = MemoryEstimate(
    True, 0.9, 4096.0, 1024.0, 1.0, 1, 1, 1.0, 1.0,
    (("weights", 4096.0), ("graphs", 300.0), ("kv", 1024.0), ("others", 1.0), ("free", 9.0)),
)  # fmt: skip


def test_the_memory_of_a_card_is_told_apart_by_part_and_by_owner() -> None:
    (found,) = by_card([SAMPLE], {7, 8}, FORECAST, {"weights_gib": 4.5, "kv_tokens": 9})
    assert (found["gpu"], found["engine_mib"], found["others_mib"]) == (1, 8000, 1000)
    assert found["engine_pids"] == [7, 8]
    assert found["parts"] == {
        "weights": {"mib": 4608, "from": "reported"},
        "graphs": {"mib": 300, "from": "forecast"},
        "kv": {"mib": 1024, "from": "forecast"},
    }


def test_a_card_has_the_parts_of_its_own_stage() -> None:
    """What the engine reports without a stage is that of one of them, whichever it is."""

    def rank(stage: int, node: str, card: int, mib: float) -> RankForecast:
        parts: tuple[tuple[MemoryPart, float], ...] = (("weights", mib), ("kv", 1.0))
        return RankForecast(stage, node, (card,), (stage, stage), 22_000, parts, stage == 0)

    here, other, elsewhere = (
        rank(0, "head", 0, 10.0), rank(1, "head", 1, 20.0), rank(2, "n2", 1, 30.0)
    )  # fmt: skip
    staged = replace(FORECAST, ranks=(here, other, elsewhere))
    (found,) = by_card([SAMPLE], {7}, staged, {"weights_gib": 4.5})
    assert found["parts"]["weights"] == {"mib": 20, "from": "forecast"}
    (found,) = by_card([SAMPLE], {7}, staged, {"stage_0_weights_gib": 2, "stage_1_weights_gib": 1})
    assert found["parts"]["weights"] == {"mib": 1024, "from": "reported"}


def test_parts_are_reported_without_a_forecast_and_unknown_where_processes_are() -> None:
    (found,) = by_card([SAMPLE], {7}, None, {"graph_gib": 0.5})
    assert found["parts"] == {"graphs": {"mib": 512, "from": "reported"}}
    (found,) = by_card([SAMPLE], {4711}, FORECAST, {})
    assert (found["engine_mib"], found["others_mib"], found["parts"]) == (None, None, {})
