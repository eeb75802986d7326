"""Measuring: prompts without repetition, figures of rounds, and the noise threshold."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.lab.core.bench import compare, prompts, ranks, record
from caovand.lab.core.bench.prompts import TooLittleText
from caovand.lab.core.bench.record import TimedAnswer
from caovand.lab.corpus import texts

samples = st.lists(st.integers(-50, 50).map(float), min_size=1, max_size=7)


# -- the test for noise -----------------------------------------------------------------------


def brute(one: list[float], other: list[float]) -> float:
    """The definition: of all ways to choose the first sample, how many are as far off."""
    numbers = ranks.doubled_ranks([*one, *other])
    middle = len(one) * sum(numbers) / len(numbers)
    sums = [sum(chosen) for chosen in itertools.combinations(numbers, len(one))]
    far = abs(sum(numbers[: len(one)]) - middle)
    return sum(abs(total - middle) >= far - 1e-9 for total in sums) / len(sums)


@given(samples, samples)
def test_a_chance_is_what_counting_every_split_says(one: list[float], other: list[float]) -> None:
    assert ranks.chance(one, other) == pytest.approx(brute(one, other))


@given(samples, samples, st.integers(-9, 9))
def test_a_chance_depends_on_order_alone(one: list[float], other: list[float], by: int) -> None:
    found = ranks.chance(one, other)
    assert 0 < found <= 1
    assert ranks.chance(other, one) == pytest.approx(found)
    assert ranks.chance([2 * x + by for x in one], [2 * x + by for x in other]) == found
    assert ranks.chance(one, one) == 1


@given(st.lists(st.integers(0, 99).map(float), min_size=6, max_size=10))
def test_noise_alone_is_called_a_difference_no_more_often_than_promised(
    values: list[float],
) -> None:
    half = len(values) // 2
    splits = list(itertools.combinations(range(len(values)), half))
    wrong = 0
    for chosen in splits:
        rest = [values[n] for n in range(len(values)) if n not in chosen]
        wrong += ranks.chance([values[n] for n in chosen], rest) <= compare.NOISE
    assert wrong <= compare.NOISE * len(splits)


def test_five_rounds_each_are_the_fewest_that_can_be_judged() -> None:
    assert ranks.least_chance(5, 5) == pytest.approx(2 / 252)
    assert ranks.least_chance(4, 4) > compare.NOISE >= ranks.least_chance(5, 5)


def result(pace: list[float], token_s: list[float], **changes: Any) -> dict[str, Any]:
    """A result with one cell."""
    rounds = [
        {"prefill_tokens_per_s": 1.0, "decode_tokens_per_s": a, "token_s": [b], "first_token_s": []}
        for a, b in zip(pace, token_s, strict=True)
    ]
    conditions = {name: name for name in compare.CONDITIONS}
    return {**conditions, "cells": [{"prompt": 512, "at_once": 2, "rounds": rounds}], **changes}


SLOW, FAST = [10.0, 11.0, 10.5, 10.2, 10.9], [12.0, 12.5, 11.5, 13.0, 12.1]


def test_a_difference_of_every_round_is_better_or_worse_by_its_figure() -> None:
    found = {row.figure: row for row in compare.rows(result(SLOW, FAST), result(FAST, SLOW))}
    assert "first_token_s" not in found, "neither has it"
    assert found["decode_tokens_per_s"].verdict == "better"
    assert found["decode_tokens_per_s"].change == pytest.approx(1.6 / 10.5)
    assert found["token_s"].verdict == "better", "less time is better"
    assert found["prefill_tokens_per_s"].verdict == "noise"
    back = {row.figure: row for row in compare.rows(result(FAST, SLOW), result(SLOW, FAST))}
    assert [back[name].verdict for name in ("decode_tokens_per_s", "token_s")] == ["worse"] * 2
    assert (back["token_s"].a.least, back["token_s"].a.most) == (10.0, 11.0)


def test_too_few_rounds_have_no_verdict_and_other_cells_no_row() -> None:
    few = result(SLOW[:3], FAST[:3])
    assert {row.verdict for row in compare.rows(few, result(FAST, SLOW))} == {"too few rounds"}
    other = result(SLOW, FAST)
    other["cells"][0]["prompt"] = 4096
    assert not list(compare.rows(few, other))
    assert compare.differing_conditions(few, {**other, "mtp": 3}) == {"mtp": ("mtp", 3)}


# -- prompts ----------------------------------------------------------------------------------

PASSAGES = prompts.passages(texts())


def test_the_texts_suffice_for_the_longest_prompt_and_repeat_nothing() -> None:
    assert len(set(PASSAGES)) == len(PASSAGES)
    lines = [line for text in texts() for line in text.splitlines() if len(line) > 80]
    assert len(set(lines)) > 0.98 * len(lines)
    assert sum(map(len, PASSAGES)) > 450_000, "100k tokens have some 400,000 characters"
    scripts = "".join(PASSAGES)
    assert all(letter in scripts for letter in "ßñяλعहは的한đ{")


def test_prompts_are_the_same_for_a_seed_but_for_their_beginning() -> None:
    one, again = (prompts.prompt(PASSAGES, salt, 1, 7) for salt in ("aaaa", "bbbb"))
    assert one[4:] == again[4:]
    assert one[:4] != again[:4]
    others = [prompts.prompt(PASSAGES, "aaaa", *which)[60:300] for which in ((2, 7), (1, 8))]
    assert len({one[60:300], *others}) == 3
    assert len(one) > sum(map(len, PASSAGES)), "all of it"


@given(st.integers(1, 4000), st.integers(1, 12))
def test_a_prompt_has_the_tokens_asked_for_and_never_more(tokens: int, density: int) -> None:
    text = "x" * 60_000

    def count(part: str) -> int:
        return 3 + len(part) // density

    if tokens < 3:
        return
    found, many = prompts.fit(text, tokens, count)
    assert many == count(found) <= tokens
    assert many >= tokens * (1 - prompts.LENGTH_TOLERANCE) - 1


def test_uneven_text_is_fitted_too_and_too_little_is_refused() -> None:
    chance = random.Random(1)
    text = "".join("ab" * 40 if chance.random() < 0.5 else "語" * 20 for _ in range(900))

    def count(part: str) -> int:
        return part.count("語") * 2 + part.count("ab") // 2

    found, many = prompts.fit(text, 5000, count)
    assert 4950 <= many == count(found) <= 5000
    with pytest.raises(TooLittleText, match="all texts together have"):
        prompts.fit(text, 10**6, count)
    with pytest.raises(TooLittleText, match="its unique beginning alone is longer"):
        prompts.fit(text, 3, lambda part: 50 + len(part))


# -- figures ----------------------------------------------------------------------------------


def test_a_round_tells_reading_from_generating() -> None:
    """Two requests, the second's prompt read while the first generates."""
    one = TimedAnswer(10.0, (11.0, 11.5, 12.0), 100, 5)  # 4 tokens in 1 s after the first
    two = TimedAnswer(10.0, (12.0, 13.0, 14.0), 300, 3)  # 2 tokens in 2 s
    found = record.round_of([one, two])
    assert found["prefill_tokens_per_s"] == 400 / 2
    assert found["decode_tokens_per_s"] == 4 + 1
    assert found["tokens_per_s"] == 8 / 4
    assert found["first_token_s"] == [1.0, 2.0]
    assert found["token_s"] == [0.25, 1.0]
    assert record.round_of([TimedAnswer(0.0, (1.0,), 9, 1)])["decode_tokens_per_s"] is None


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0, 1))
def test_a_quantile_lies_among_its_numbers(numbers: list[float], share: float) -> None:
    assert min(numbers) <= (record.quantile(numbers, share) or 0.0) <= max(numbers) + 1e-9


def status(requests: float, energy_j: float | None, at: float, **totals: Any) -> dict[str, Any]:
    """The part of a status document that is counted."""
    zero = {
        "preemptions": 0.0,
        "drafts": 0.0,
        "accepted": [],
        "prefix_hits": 0.0,
        "prefix_queries": 0.0,
    }
    return {
        "figures": {
            "age_s": 1.0, "memory": [{"gpu": 1}],
            "totals": {"requests": requests, **zero, **totals},
        },
        "gpus": [
            {"index": 0, "energy_j": 1e9 * at, "power_w": 9.0, "at": at, "fault": ""},
            {"index": 1, "energy_j": energy_j, "power_w": 50.0, "at": at, "fault": ""},
        ],
    }  # fmt: skip


ANSWERS = [TimedAnswer(100.0, (110.0, 200.0), 50, 400)] * 2


def test_the_daemons_counts_are_those_of_this_time_and_these_cards() -> None:
    before = status(5, 1000.0, 99.0, drafts=10.0, accepted=[9.0])
    after = status(
        8,
        3000.0,
        201.0,
        preemptions=2.0,
        drafts=110.0,
        accepted=[89.0, 40.0],
        prefix_hits=1.0,
        prefix_queries=4.0,
    )
    assert record.counts(before, after, ANSWERS, (100.0, 200.0)) == {
        "drafting": {"accepted": [0.8, 0.4], "tokens_per_step": 2.2},
        "prefix_hits": 0.25,
        "tokens_per_j": pytest.approx(800 / (2000 - 2 * 50), abs=1e-6),
        "preemptions": 2,
        "others": 1,
    }


@pytest.mark.parametrize(
    ("first", "last"),
    [
        pytest.param((None, 99.0), (None, 201.0), id="no counter"),
        pytest.param((1.0, 101.0), (1e6, 201.0), id="the first sample is too late"),
        pytest.param((1.0, 99.0), (1e6, 199.0), id="the last sample is too early"),
        pytest.param((1.0, -9.0), (1e6, 201.0), id="at rest for most of the time"),
        pytest.param((9.0, 99.0), (1.0, 201.0), id="the counter began anew"),
    ],
)
def test_joules_are_left_out_where_they_would_mislead(first: Any, last: Any) -> None:
    found = record.counts(status(0, *first), status(2, *last), ANSWERS, (100.0, 200.0))
    assert found["tokens_per_j"] is None


def test_without_cards_or_without_all_requests_the_rest_is_unknown() -> None:
    before, after = status(0, 1.0, 99.0), status(1, 9.0, 201.0, drafts=5.0)
    for one in (before, after):
        one["gpus"], one["figures"]["memory"] = [], []
    found = record.counts(before, after, ANSWERS, (100.0, 200.0))
    assert found == dict.fromkeys(
        ("drafting", "prefix_hits", "tokens_per_j", "preemptions", "others")
    )
    assert record.counted_at(after, 210.0) == 209.0
