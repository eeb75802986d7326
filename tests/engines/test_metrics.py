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
    progress = parse_metrics((SAMPLES / "metrics-0.32.txt").read_text(), load=2, at=7.0).progress
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
    progress = parse_metrics(text, None, 0.0).progress
    assert (progress.generation_tokens, progress.kv_cache_usage) == (15, 0.375)
    assert progress.waiting == 0
    assert progress.pending is None


def test_one_of_several_servers_does_not_know_what_is_pending() -> None:
    """Replicas have a server each by default, of which any may answer; seen with 0.32."""
    one = 'vllm:kv_cache_usage_perc{engine="0"} 0.5\nvllm:num_requests_running{engine="0"} 3\n'
    both = one + one.replace('"0"', '"1"')
    assert parse_metrics(one, 0, 0.0).progress.pending == 0
    assert parse_metrics(both, 0, 0.0).progress.pending == 6
    assert parse_metrics(both, 9, 0.0).progress.pending == 9


def test_completions_that_ended_are_counted_whatever_became_of_them() -> None:
    paths = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
    text = "".join(
        f'http_requests_total{{handler="{path}",method="POST",status="{status}"}} 2.0\n'
        for path in (*paths, "/v1/models", "/tokenize")
        for status in ("2xx", "4xx", "5xx")
    )
    assert parse_metrics(text, None, 0.0).progress.requests_ended == 16


def test_what_does_not_parse_is_passed_over() -> None:
    text = (
        "vllm:num_requests_running\nvllm:num_requests_running{} many\n<html>\n"
        "vllm:num_requests_running{} NaN\nvllm:num_requests_running{} 1e0\nvllm:"
    )
    assert parse_metrics(text, None, 0.0).progress.running == 1


VALUES = ["NaN", "inf", "-inf", "+Inf", "1e999", "-1", "1e400", "0x10", "9" * 5000, "1e300", ""]


@pytest.mark.parametrize("value", VALUES)
def test_a_value_that_is_no_count_is_passed_over(value: str) -> None:
    text = "".join(f"{name} {value}\n{name} 0.5\n" for name in COUNTERS)
    text += f'http_requests_total{{handler="/v1/completions",method="POST",status="2xx"}} {value}\n'
    progress = parse_metrics(text, None, 0.0).progress
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
    found = vars(parse_metrics(text, 0, 1.0).progress)
    assert all(0 <= value < float("inf") for value in found.values())
    json.dumps(found, allow_nan=False)


def test_an_engine_that_served_shows_times_drafts_and_hits() -> None:
    """4 requests of 1,540 tokens in all, 3 drafts a step, every one accepted."""
    text = (SAMPLES / "metrics-0.32-served.txt").read_text()
    counters = parse_metrics(text, None, 0.0).counters
    assert (counters.prompt_tokens, counters.generation_tokens) == (2090, 1540)
    assert (counters.requests, counters.steps, counters.drafts) == (4, 389, 385)
    assert (counters.drafted_tokens, counters.accepted) == (1155, (385, 385, 385))
    first, token, step = counters.first_token_s, counters.token_s, counters.step_s
    assert (first.count, first.counts[4], first.bounds[:2]) == (4, 2, (0.001, 0.005))
    assert first.sum == pytest.approx(0.258346, abs=1e-6)
    assert (token.count, step.count) == (4, 385)


def test_tokens_that_were_computed_have_their_time() -> None:
    counters = parse_metrics((SAMPLES / "metrics-0.32.txt").read_text(), None, 0.0).counters
    assert (counters.reads, counters.read_tokens) == (3, 45)
    assert counters.read_seconds == pytest.approx(0.11868, abs=1e-5)


def test_two_engines_of_one_server_are_one_histogram() -> None:
    name = "vllm:time_to_first_token_seconds"
    text = "".join(
        f'{name}_bucket{{engine="{n}",le="{bound}"}} {count}\n'
        for n in (0, 1)
        for bound, count in (("0.1", 2), ("1.0", 3), ("+Inf", 4))
    )
    text += f'{name}_sum{{engine="0"}} 5\n{name}_sum{{engine="1"}} 6\n'
    found = parse_metrics(text, None, 0.0).counters.first_token_s
    assert (found.bounds, found.counts, found.sum) == ((0.1, 1.0), (4, 2, 2), 11)


@pytest.mark.parametrize(
    "rows",
    [
        {"0.1": 3, "1.0": 2, "+Inf": 4},  # they count up
        {"0.1": 1, "1.0": 2},  # nothing is above
        {"nan": 1, "+Inf": 2},
        {"-1": 1, "+Inf": 2},
        {"+Inf": 2},
        {str(n): n for n in range(200)} | {"+Inf": 200},
    ],
)
def test_what_is_no_histogram_is_an_empty_one(rows: dict[str, int]) -> None:
    name = "vllm:inter_token_latency_seconds_bucket"
    text = "".join(f'{name}{{le="{bound}"}} {count}\n' for bound, count in rows.items())
    assert parse_metrics(text, None, 0.0).counters.step_s.count == 0


def test_a_position_that_cannot_be_is_no_position() -> None:
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    text = f'{name}{{position="1"}} 3\n{name}{{position="99"}} 3\n{name}{{position="x"}} 3\n'
    assert parse_metrics(text, None, 0.0).counters.accepted == (0.0, 3.0)
