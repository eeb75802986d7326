"""vLLM's metrics as counters of progress."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.engines.vllm.metrics import COUNTERS, parse_metrics

SAMPLES = Path(__file__).parents[1] / "samples"


def test_a_real_answer_gives_every_counter() -> None:
    progress = parse_metrics((SAMPLES / "metrics-0.32.txt").read_text(), load=2, at=7.0)
    assert (progress.prompt_tokens, progress.generation_tokens) == (45, 120)
    assert (progress.requests_finished, progress.iterations) == (3, 33)
    assert (progress.drafted_tokens, progress.accepted_tokens) == (90, 90)
    assert (progress.running, progress.waiting, progress.pending) == (0, 0, 2)
    assert progress.at == 7.0


def test_series_of_one_name_are_added_up_and_shares_are_averaged() -> None:
    text = (
        'vllm:generation_tokens_total{engine="0",model_name="a}b {c"} 10.0\n'
        'vllm:generation_tokens_total{engine="1",model_name="m"} 5\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.5\n'
        'vllm:kv_cache_usage_perc{engine="1"} 0.25\n'
        'vllm:num_requests_waiting_by_reason{reason="capacity"} 9\n'
    )
    progress = parse_metrics(text, None, 0.0)
    assert (progress.generation_tokens, progress.kv_cache_usage) == (15, 0.375)
    assert progress.waiting == 0
    assert progress.pending is None


def test_completions_that_ended_are_counted_whatever_became_of_them() -> None:
    paths = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
    text = "".join(
        f'http_requests_total{{handler="{path}",method="POST",status="{status}"}} 2.0\n'
        for path in (*paths, "/v1/models", "/tokenize")
        for status in ("2xx", "4xx", "5xx")
    )
    assert parse_metrics(text, None, 0.0).requests_ended == 16


def test_what_does_not_parse_is_passed_over() -> None:
    text = (
        "vllm:num_requests_running\nvllm:num_requests_running{} many\n<html>\n"
        "vllm:num_requests_running{} NaN\nvllm:num_requests_running{} 1e0\nvllm:"
    )
    assert parse_metrics(text, None, 0.0).running == 1


VALUES = ["NaN", "inf", "-inf", "+Inf", "1e999", "-1", "1e400", "0x10", "9" * 5000, "1e300", ""]


@pytest.mark.parametrize("value", VALUES)
def test_a_value_that_is_no_count_is_passed_over(value: str) -> None:
    text = "".join(f"{name} {value}\n{name} 0.5\n" for name in COUNTERS)
    text += f'http_requests_total{{handler="/v1/completions",method="POST",status="2xx"}} {value}\n'
    progress = parse_metrics(text, None, 0.0)
    for name in COUNTERS.values():
        assert getattr(progress, name) == 0.5
    assert progress.requests_ended == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*COUNTERS, "vllm:", "x", "{", "}"]),
            st.sampled_from(["", "{}", '{a="b"}', '{a="} 1', "{{", " "]),
            st.one_of(st.floats().map(repr), st.text(max_size=5), st.sampled_from(VALUES)),
        ).map(" ".join)
    ).map("\n".join)
)
def test_whatever_the_text_counters_are_finite_and_not_negative(text: str) -> None:
    found = vars(parse_metrics(text, 0, 1.0))
    assert all(0 <= value < float("inf") for value in found.values())
    json.dumps(found, allow_nan=False)
