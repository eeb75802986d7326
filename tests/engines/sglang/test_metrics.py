"""SGLang's metrics become the counters that every engine has."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from caovand.core.figures.counters import Counters
from caovand.core.figures.histogram import Histogram
from caovand.engines.sglang.metrics import parse_metrics

SAMPLE = Path(__file__).parents[2] / "samples" / "sglang" / "metrics.txt"


def test_counters_are_read_and_series_summed() -> None:
    reading = parse_metrics(SAMPLE.read_text(encoding="utf-8"), None, 7.0)
    progress = reading.progress
    assert (progress.generation_tokens, progress.prompt_tokens) == (250, 1000)
    assert (progress.running, progress.waiting) == (3, 2)  # one priority is a part of all
    assert (progress.requests_finished, progress.requests_ended) == (6, 7)
    assert (progress.iterations, progress.kv_cache_usage) == (75, 0.25)
    assert (progress.pending, progress.at) == (None, 7.0)
    assert reading.counters == Counters(
        prompt_tokens=1000, generation_tokens=250, requests=6, steps=75, preemptions=1,
        prefix_queries=1400, prefix_hits=400,
        first_token_s=Histogram((0.1, 0.2, 0.4), (2, 1, 0, 1), 1.5),
        token_s=Histogram((0.002, 0.004, 0.006), (0, 100, 120, 24), 1.25),
    )  # fmt: skip


def test_of_requests_without_a_stream_no_first_token_is_known() -> None:
    lines = [
        f'sglang:time_to_first_token_seconds_bucket{{{labels}le="{bound}",model_name="m"}} 2.0'
        for labels in ('is_streaming="false",', "")
        for bound in ("0.1", "+Inf")
    ]
    whole, older = "\n".join(lines[:2]), "\n".join(lines[2:])
    assert not parse_metrics(whole, None, 0.0).counters.first_token_s.count
    assert parse_metrics(older, None, 0.0).counters.first_token_s.count == 2


@given(st.text(max_size=200))
def test_any_answer_is_read(text: str) -> None:
    for line in (text, f"sglang:{text}", f"sglang:num_running_reqs{{{text}}} 1"):
        assert parse_metrics(line, None, 0.0).progress.running in (0, 1)
