"""A soak's conclusions: noise passes, leaks and drifts are found, rounding is no fault."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.health.canary import GreedyAnswer
from caovand.lab.core.soak import known, trends, verdict
from caovand.lab.core.soak.judged import Outcome, SoakCheck
from caovand.lab.core.soak.known import Difference
from caovand.lab.core.soak.schedule import SHARES, Limits, TaskKind, task_for
from caovand.lab.core.soak.seen import AnswerComparison, AnswerTimes, Mishap, SoakRecord, SoakSample

HOURS_8 = 8 * 3600.0
LIMITS = Limits(short=512, long=8192, answer=128, known=4, constrained=True)


def outcome(seen: SoakRecord, name: str) -> SoakCheck:
    """One check of the verdict."""
    (found,) = (check for check in verdict.checks(seen) if check.name == name)
    return found


def noisy(chance: random.Random, level: float, noise: float) -> float:
    """A value with normal noise, and now and then an outlier."""
    return level * (1 + chance.gauss(0, noise) + (chance.random() < 0.02) * chance.random())


def paces(
    seed: int, slower: Callable[[float], float], noise: float = 0.04
) -> tuple[AnswerTimes, ...]:
    """48 quiet moments; `slower` makes a factor of the share of the time."""
    chance = random.Random(seed)
    return tuple(
        AnswerTimes(
            share * HOURS_8, 1,
            noisy(chance, 0.4 * slower(share), noise), noisy(chance, 0.02 * slower(share), noise),
        )
        for share in (n / 48 for n in range(48))
    )  # fmt: skip


def samples(seed: int, gained: Callable[[float], float], **more: Any) -> tuple[SoakSample, ...]:
    """400 samples of an engine with 9 GiB; `gained` makes MiB of the share of the time."""
    chance = random.Random(seed)
    return tuple(
        SoakSample(
            share * HOURS_8, 1, gpu_mib=20_000.0, daemon_mib=47 + chance.random(),
            engine_mib=9000 + gained(share) + chance.gauss(0, 30) + 300 * (chance.random() < 0.05),
            engine_files=float(chance.randrange(80, 100)), daemon_files=28.0, shared_mib=70.0,
            **more,
        )
        for share in (n / 400 for n in range(400))
    )  # fmt: skip


# -- noise passes, leaks and drifts do not --------------------------------------------------------


def test_flat_and_noisy_passes_in_99_of_100_seeds() -> None:
    failed = Counter(
        check.name
        for seed in range(100)
        for check in verdict.checks(
            SoakRecord(HOURS_8, samples(seed, lambda _: 0.0), paces(seed, lambda _: 1.0))
        )
        if check.outcome is Outcome.FAILED
    )
    assert sum(failed.values()) <= 1, failed


@pytest.mark.parametrize(
    "slower", [lambda share: 1.15 if share > 0.5 else 1.0, lambda share: 1 + 0.2 * share]
)
def test_drift_is_found_in_99_of_100_seeds(slower: Callable[[float], float]) -> None:
    """Of 15 % at once in the middle, or of 20 % evenly from beginning to end."""
    seen = [SoakRecord(HOURS_8, paces=paces(seed, slower)) for seed in range(100)]
    for name in ("decoding alone", "prefill alone"):
        assert sum(outcome(one, name).outcome is Outcome.FAILED for one in seen) >= 99


@given(st.integers(0, 10_000), st.floats(1.0, 4.0))
def test_becoming_faster_is_no_drift(seed: int, factor: float) -> None:
    seen = SoakRecord(HOURS_8, paces=paces(seed, lambda share: 1 / factor if share > 0.5 else 1.0))
    assert outcome(seen, "decoding alone").outcome is Outcome.PASSED


def test_heat_that_explains_slowness_is_noted_and_fails_nothing() -> None:
    slow = paces(1, lambda share: 1.3 if share > 0.5 else 1.0)
    hot = tuple(
        replace(one, throttled="heat" if one.at_s > HOURS_8 / 2 else "")
        for one in samples(1, lambda _: 0.0)
    )
    found = outcome(SoakRecord(HOURS_8, hot, slow), "decoding alone")
    assert found.outcome is Outcome.NOTED
    assert found.text.endswith(
        "; heat slowed the cards down in 100% of the last third, and in 0% of the first"
    )
    always = tuple(replace(one, throttled="heat") for one in hot)
    assert outcome(SoakRecord(HOURS_8, always, slow), "decoding alone").outcome is Outcome.FAILED


@given(st.integers(0, 10_000), st.floats(200, 5000))
def test_a_leak_is_found_with_its_size(seed: int, mib: float) -> None:
    found = outcome(
        SoakRecord(HOURS_8, samples(seed, lambda share: mib * share)), "engine's memory"
    )
    assert found.outcome is Outcome.FAILED
    hourly = float(found.text.split(", ")[1].split(" ")[0].replace(",", ""))
    assert hourly == pytest.approx(mib / 8, rel=0.35)


def test_a_step_is_hardly_ever_a_leak() -> None:
    """A buffer that grew once for a longer prompt, or was freed; noise makes few leaks of that."""
    chance = random.Random(1)
    steps = [
        (seed, sign * chance.uniform(100, 5000), chance.random())
        for seed in range(60) for sign in (1, -1)
    ]  # fmt: skip
    leaks = 0
    for seed, mib, at in steps:
        stepped = samples(seed, lambda share, mib=mib, at=at: mib * (share > at))  # type: ignore[misc]
        found = outcome(SoakRecord(HOURS_8, stepped), "engine's memory").outcome
        leaks += found is not Outcome.PASSED
    assert leaks <= 0.02 * len(steps)


def test_what_fills_up_in_the_first_quarter_is_no_leak() -> None:
    filling = samples(3, lambda share: 3000 * min(share * 4, 1.0))
    assert outcome(SoakRecord(HOURS_8, filling), "engine's memory").outcome is Outcome.PASSED


@pytest.mark.parametrize(("seconds", "expected"), [(72.0, Outcome.NOTED), (1500.0, Outcome.FAILED)])
def test_growth_within_minutes_is_only_noted(seconds: float, expected: Outcome) -> None:
    """A healthy engine's buffers filled by 85 MiB in a soak of 72 s."""
    growing = (
        replace(one, at_s=one.at_s * seconds / HOURS_8) for one in samples(4, lambda n: 300 * n)
    )
    found = outcome(SoakRecord(seconds, tuple(growing)), "engine's memory")
    assert found.outcome is expected
    assert ("judging a leak takes 15 minutes after the warm-up" in found.text) == (seconds == 72.0)


def test_leaks_of_everything_watched_are_named() -> None:
    def grown(share: float) -> SoakSample:
        return SoakSample(share * HOURS_8, 1, *(1000 + 500 * share for _ in range(6)))

    seen = SoakRecord(HOURS_8, tuple(grown(n / 100) for n in range(100)))
    failed = {one.name for one in verdict.checks(seen) if one.outcome is Outcome.FAILED}
    assert failed == {
        "engine's memory", "engine's open files", "GPU memory", "daemon's memory",
        "daemon's open files", "/dev/shm",
    }  # fmt: skip


def test_what_cannot_be_read_is_not_judged() -> None:
    seen = SoakRecord(60.0, tuple(SoakSample(float(n), 1, engine_mib=5.0) for n in range(60)))
    assert outcome(seen, "daemon's open files").outcome is Outcome.UNKNOWN
    assert outcome(seen, "engine's memory").outcome is Outcome.PASSED
    assert "GPU memory" not in {one.name for one in verdict.checks(seen)}


def test_the_memory_of_two_engines_is_not_compared() -> None:
    """One restart in the middle: the longer life is judged, without its first part."""
    two = tuple(
        replace(one, generation=1 + (n > 250), engine_mib=1000.0 + 1000 * (n > 250))
        for n, one in enumerate(samples(1, lambda _: 0.0))
    )
    assert outcome(SoakRecord(HOURS_8, two), "engine's memory").text.startswith(
        "1,000 to 1,000 MiB"
    )


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30), st.floats(-5, 5))
def test_a_slope_is_that_of_the_line_however_it_is_moved(values: list[float], by: float) -> None:
    points = [(float(n), value) for n, value in enumerate(values)]
    turned = [(at, value + by * at) for at, value in points]
    slope = trends.theil_sen(points)
    assert trends.theil_sen(turned) == pytest.approx(slope + by, abs=1e-3)
    assert trends.theil_sen([(at, by * at) for at, _ in points]) == pytest.approx(by)


@given(st.lists(st.integers(-5, 5), max_size=40))
def test_a_chance_of_a_rise_is_one_and_falls_do_not_count(values: list[int]) -> None:
    up, down = trends.rise_chance(values), trends.rise_chance(values[::-1])
    assert 0 <= up <= 1
    assert max(up, down) == 1.0 or max(up, down) > 0.3
    assert trends.rise_chance(sorted(values)) <= up


# -- drafts ---------------------------------------------------------------------------------------


def test_acceptance_that_collapses_fails() -> None:
    def counted(last: float) -> SoakRecord:
        accepted, kept = 0.0, []
        for n, one in enumerate(samples(1, lambda _: 0.0)):
            accepted += 20 if n < 250 else 20 * last
            kept.append(replace(one, drafts=10.0 * n, accepted=accepted))
        return SoakRecord(HOURS_8, tuple(kept))

    assert outcome(counted(0.8), "drafts").outcome is Outcome.PASSED
    found = outcome(counted(0.1), "drafts")
    assert found.outcome is Outcome.FAILED
    assert found.text == (
        "2.00 tokens per draft were accepted in the first third, 0.20 in the last"
    )
    assert "drafts" not in {
        c.name for c in verdict.checks(SoakRecord(60.0, samples(1, lambda _: 0.0)))
    }


# -- answers --------------------------------------------------------------------------------------

CLOSE, CLEAR, UNSURE = (Difference(3, "b", "a", margin) for margin in (0.2, 2.5, None))
words = st.lists(st.sampled_from("abc"), min_size=1, max_size=6)


def compared(difference: Difference | None, **more: Any) -> AnswerComparison:
    """One answer alone, the first of two, unless `more` tells otherwise."""
    return AnswerComparison(**{"at_s": 1.0, "prompt": 0, "alone": True, "again": False, **more},
                    difference=difference)  # fmt: skip


@pytest.mark.parametrize(
    ("difference", "more", "expected"),
    [
        (None, {}, Outcome.PASSED),
        (CLOSE, {}, Outcome.NOTED),
        (CLOSE, {"again": True}, Outcome.FAILED),
        (CLEAR, {}, Outcome.FAILED),
        (UNSURE, {}, Outcome.FAILED),
    ],
)
def test_a_difference_alone(difference: Any, more: Any, expected: Outcome) -> None:
    seen = SoakRecord(60.0, compared=(compared(None), compared(difference, **more)))
    found = outcome(seen, "answers alone")
    assert found.outcome is expected
    if expected is Outcome.FAILED:
        assert "1 of 2 differ; first after 0:00:01, prompt 1: token 3 is 'b'" in found.text


@pytest.mark.parametrize(
    ("difference", "expected"),
    [
        (None, Outcome.PASSED),
        (CLOSE, Outcome.NOTED),
        (UNSURE, Outcome.NOTED),
        (CLEAR, Outcome.FAILED),
    ],
)
def test_a_difference_under_load(difference: Any, expected: Outcome) -> None:
    every = tuple(compared(difference, alone=False, at_s=float(n)) for n in range(60))
    assert outcome(SoakRecord(60.0, compared=every), "answers under load").outcome is expected


def test_differences_under_load_that_become_more_frequent_fail() -> None:
    growing = tuple(
        compared(UNSURE if n > 30 and n % 2 else None, alone=False, at_s=float(n))
        for n in range(60)
    )
    found = outcome(SoakRecord(60.0, compared=growing), "answers under load")
    assert found.outcome is Outcome.FAILED
    assert "0 of 31 in the first half, 15 of 29 in the second" in found.text


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 12), st.integers(0, 12))
def test_fishers_chance_is_that_of_all_splits(a: int, b: int, c: int, d: int) -> None:
    of, of_them = a + b, c + d
    chance = known.more_often(a, of, c, of_them)
    assert 0 < chance <= 1 + 1e-9
    if c:
        assert chance <= known.more_often(a + 1, of + 1, c - 1, max(of_them - 1, c - 1)) + 1
    splits = sum(
        math.comb(of_them, n) * math.comb(of, a + c - n)
        for n in range(of_them + 1)
        if 0 <= a + c - n <= of
    )
    assert splits == math.comb(of + of_them, a + c)


@given(words, words, words)
def test_a_difference_is_the_first_token_after_the_longest_agreement(
    one: list[str], other: list[str], now: list[str]
) -> None:
    answers = [GreedyAnswer(tuple(each), (0.5,) * len(each)) for each in (one, other)]
    found = known.difference(answers, GreedyAnswer(tuple(now), ()))

    def agreed(answer: GreedyAnswer) -> int:
        same = [a == b for a, b in zip(answer.tokens, now, strict=False)]
        return next((n for n, yes in enumerate(same) if not yes), len(same))

    if any(agreed(answer) == len(answer.tokens) for answer in answers):
        assert found is None
    else:
        assert found is not None
        assert found.place == 1 + max(map(agreed, answers))
        assert found.margin == 0.5


def test_without_logprobs_words_are_compared() -> None:
    found = known.difference([known.as_words("one two  three")], known.as_words("one two four"))
    assert found is not None
    assert found.text == "token 2 is 'two ' instead of 'two  '"


# -- errors, restarts, events ---------------------------------------------------------------------


def test_errors_are_counted_by_kind() -> None:
    errors = (Mishap(5.0, "timeout", "x: timed out"), Mishap(6.0, "HTTP 500", "y"))
    found = outcome(SoakRecord(60.0, errors=errors * 2), "errors")
    assert found.text == "2 x timeout, 2 x HTTP 500; first after 0:00:05: x: timed out"


def test_a_few_answers_without_text_are_noted_and_many_fail() -> None:
    def with_empty(count: int) -> SoakRecord:
        errors = (Mishap(5.0, verdict.EMPTY, "8 tokens without any text"),) * count
        return SoakRecord(60.0, errors=errors, requests={"short": 60, "long": 40})

    assert outcome(with_empty(10), "errors").outcome is Outcome.NOTED
    assert outcome(with_empty(11), "errors").outcome is Outcome.FAILED
    one = replace(with_empty(1), errors=(*with_empty(1).errors, Mishap(6.0, "timeout", "x")))
    assert outcome(one, "errors").text == "1 x timeout; first after 0:00:06: x"


def test_restarts_incidents_and_rungs_are_named() -> None:
    events = (
        Mishap(5.0, "failure", "it died"), Mishap(5.0, "incident", "incident 0001"),
        Mishap(6.0, "spawn", "engine started, pid 7"), Mishap(7.0, "suspicion", "it is slow"),
    )  # fmt: skip
    seen = SoakRecord(60.0, events=events, rungs=("context",))
    assert outcome(seen, "restarts").text == (
        "the engine was restarted once, first after 0:00:06; its plan was degraded: context; after"
        " 0:00:05: it died; after 0:00:05: incident 0001"
    )
    assert outcome(seen, "events").outcome is Outcome.NOTED
    away = SoakRecord(60.0, events=(Mishap(5.0, "daemon", "caovand was restarted"),))
    assert outcome(away, "restarts").outcome is Outcome.FAILED


def test_nothing_seen_passes_nothing_that_needs_to_be_seen() -> None:
    found = {check.name: check.outcome for check in verdict.checks(SoakRecord(0.0))}
    assert found.pop("errors") is found.pop("restarts") is found.pop("events") is Outcome.PASSED
    assert set(found.values()) == {Outcome.UNKNOWN}


# -- the schedule ---------------------------------------------------------------------------------


@given(st.integers(1, 1 << 24), st.integers(0, 10_000))
def test_work_follows_from_seed_and_number_and_keeps_to_the_limits(seed: int, number: int) -> None:
    found = task_for(seed, number, LIMITS)
    assert found == task_for(seed, number, LIMITS)
    assert 16 <= found.prompt_tokens <= (8192 if found.kind is TaskKind.LONG else 512)
    assert 4 <= found.answer_tokens <= 128
    assert 0 <= found.known < 4
    assert 0 <= found.pause_s <= 2
    assert (found.left_after > 0) == (found.kind is TaskKind.LEFT)
    assert (found.turns > 1) == (found.kind is TaskKind.CHAT)
    assert found.streamed or found.kind is not TaskKind.LEFT


def test_every_kind_comes_at_once_the_longest_prompt_too_and_then_by_its_share() -> None:
    first = [task_for(1, number, LIMITS) for number in range(len(SHARES))]
    assert {one.kind for one in first} == set(TaskKind)
    assert max(one.prompt_tokens for one in first) == LIMITS.long
    counts = Counter(task_for(1, number, LIMITS).kind for number in range(4000))
    for kind, share in SHARES.items():
        assert counts[kind] / 4000 == pytest.approx(share, abs=0.03)
    without = {task_for(1, n, replace(LIMITS, constrained=False)).kind for n in range(500)}
    assert without == set(TaskKind) - {TaskKind.CONSTRAINED}
