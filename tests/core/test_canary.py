"""The comparison of a fixed prompt's greedy answers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.health.canary import (
    MARGIN,
    MAX_ANSWERS,
    TOKENS,
    Degenerate,
    GreedyAnswer,
    find_change,
    from_document,
    key_of,
    read,
    to_document,
    was_alone,
)
from caovand.core.health.observation import ProgressCounters
from caovand.core.plan import Plan
from tests.core.machines import inventory

FIRST = GreedyAnswer(("a", "b", "c"), (5.0, MARGIN / 2, 5.0))


def body(tokens: list[str], logprob: Any = -0.1, second: Any = -3.1) -> str:
    tops = [{"other": second, token: logprob} for token in tokens]
    logprobs = {
        "tokens": tokens,
        "token_logprobs": [logprob] * len(tokens),
        "top_logprobs": tops,
    }
    return json.dumps({"choices": [{"logprobs": logprobs}]})


def test_margins_are_read_from_the_two_best_tokens() -> None:
    answer = read(body(["a", "b"]))
    assert answer.tokens == ("a", "b")
    assert answer.margins == pytest.approx((3.0, 3.0))


def test_two_best_tokens_of_one_text_are_no_failure() -> None:
    assert read(body(["other"])).margins == (0.0,)


@pytest.mark.parametrize("logprob", [None, float("nan"), float("inf")])
def test_logits_that_are_not_numbers_are_refused(logprob: Any) -> None:
    with pytest.raises(Degenerate):
        read(body(["a"], logprob))


@pytest.mark.parametrize(
    "text", [body([]), '{"choices": [{"logprobs": null}]}', "[]", "not JSON", "[" * 100_000]
)
def test_an_answer_without_logprobs_cannot_be_compared(text: str) -> None:
    assert read(text) is None


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (("a", "b", "c"), ""),
        (("x", "b", "c"), "token 1 is 'x' instead of 'a', which led by 5.0 nats"),
        (("a", "x", "y"), ""),  # a near tie, after which all is another text
        (("a", "b", "x"), "token 3 is 'x' instead of 'c', which led by 5.0 nats"),
        (("a", "b"), "token 3 is '' instead of 'c', which led by 5.0 nats"),
    ],
)
def test_only_a_clear_first_difference_counts(tokens: tuple[str, ...], said: str) -> None:
    assert find_change(FIRST, GreedyAnswer(tokens, (5.0,) * len(tokens)), MARGIN) == said


@pytest.mark.parametrize(("second", "margin"), [(None, 0.0), ("-Infinity", 100.0), ("NaN", 0.0)])
def test_a_second_best_that_is_no_number_makes_no_margin_that_cannot_be_kept(
    second: str | None, margin: float
) -> None:
    text = body(["a"]).replace("-3.1", second) if second else body(["other"])
    assert read(text).margins == (margin,)


WORDS = st.lists(st.sampled_from("abcd"), min_size=2, max_size=TOKENS).map(tuple)


@given(WORDS, WORDS, st.floats(0, 0.99))
def test_a_model_without_preferences_never_trips(
    first: tuple[str, ...], now: tuple[str, ...], lead: float
) -> None:
    """As one with random weights: it may even begin to repeat a token."""
    margins = (lead * MARGIN,) * TOKENS
    kept, found = GreedyAnswer(first, margins[: len(first)]), GreedyAnswer(now, margins[: len(now)])
    assert find_change(kept, found, MARGIN) == ""


@given(WORDS, st.data())
def test_what_follows_a_near_tie_is_excused_and_a_clear_change_before_one_is_not(
    first: tuple[str, ...], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(first) - 1))
    tie = data.draw(st.booleans())
    margins = tuple(0.1 if tie and at == place else 9.0 for at in range(len(first)))
    now = (*first[:place], "x", *data.draw(WORDS))[: len(first)]
    if len(set(now)) == 1:
        now = (*now[:-1], "y")
    said = find_change(GreedyAnswer(first, margins), GreedyAnswer(now, (9.0,) * len(now)), MARGIN)
    assert bool(said) != (tie and now[place] == "x")


@given(WORDS)
def test_the_same_answer_is_never_changed(first: tuple[str, ...]) -> None:
    answer = GreedyAnswer(first, (9.0,) * len(first))
    assert find_change(answer, answer, MARGIN) == ""


def test_an_answer_that_begins_to_repeat_one_token_is_degenerate_even_after_a_near_tie() -> None:
    first = GreedyAnswer(("a", "b", "c", "d"), (0.1, 9.0, 9.0, 9.0))
    with pytest.raises(Degenerate, match="it repeats '!'"):
        find_change(first, GreedyAnswer(("!",) * 4, (9.0,) * 4), MARGIN)


IDLE = ProgressCounters(100, 50, 3, 9, 0, 0, 0, 0, 0, None, 1.0, requests_ended=3)
OURS = replace(IDLE, generation_tokens=100 + TOKENS, requests_ended=4)


@pytest.mark.parametrize(
    ("before", "after", "counts"),
    [
        (IDLE, OURS, True),
        (IDLE, IDLE, True),  # the engine counts a little later
        (None, OURS, False),
        (IDLE, None, False),
        (replace(IDLE, running=1), OURS, False),
        (IDLE, replace(OURS, waiting=1), False),
        (IDLE, replace(OURS, pending=2), False),
        (IDLE, replace(OURS, generation_tokens=101 + TOKENS), False),
        (IDLE, replace(OURS, requests_ended=5), False),
        (OURS, IDLE, False),  # another engine
    ],
)
def test_an_answer_next_to_others_does_not_count(
    before: ProgressCounters | None, after: ProgressCounters | None, counts: bool
) -> None:
    assert was_alone(before, after) is counts


def test_the_key_holds_for_one_plan_engine_model_and_machine() -> None:
    machine, plan = inventory(), Plan("m", {}, {})
    key = key_of(plan, machine, [("a", 1, 2)])
    assert key == key_of(replace(plan, key="another API key"), machine, [("a", 1, 2)])
    gpus = tuple(replace(gpu, driver="999.1") for gpu in machine.gpus)
    others = [
        key_of(replace(plan, model="n"), machine, [("a", 1, 2)]),
        key_of(plan, machine, [("a", 1, 3)]),
        key_of(plan, replace(machine, gpus=gpus), [("a", 1, 2)]),
        key_of(plan, replace(machine, gpus=gpus[:1]), [("a", 1, 2)]),
        key_of(plan, replace(machine, engine=replace(machine.engine, version="9")), [("a", 1, 2)]),
        key_of(plan, replace(machine, engine=replace(machine.engine, plugin="9")), [("a", 1, 2)]),
    ]
    assert len({key, *others}) == len(others) + 1


@given(st.dictionaries(st.text(max_size=5), WORDS, max_size=MAX_ANSWERS + 3))
def test_kept_answers_survive_and_are_bounded(words: dict[str, tuple[str, ...]]) -> None:
    kept = {key: GreedyAnswer(tokens, (1.5,) * len(tokens)) for key, tokens in words.items()}
    found = from_document(json.loads(json.dumps(to_document(kept))))
    assert found == dict(list(kept.items())[-MAX_ANSWERS:])


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
)


@given(JSON)
def test_a_broken_document_is_refused_or_can_be_kept_again(document: Any) -> None:
    found = from_document(document)
    assert found is None or from_document(to_document(found)) == found
