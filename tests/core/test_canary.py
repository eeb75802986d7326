"""The comparison of a fixed prompt's greedy answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from caovand.core.health.canary import MARGIN, Degenerate, Greedy, changed, read

FIRST = Greedy(("a", "b", "c"), (5.0, MARGIN / 2, 5.0))


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
    assert changed(FIRST, Greedy(tokens, (5.0,) * len(tokens))) == said
