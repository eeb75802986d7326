"""SGLang's metrics become the counters that every engine has."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from caovand.core.figures.counters import Counters
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
    )  # fmt: skip


@given(st.text(max_size=200))
def test_any_answer_is_read(text: str) -> None:
    for line in (text, f"sglang:{text}", f"sglang:num_running_reqs{{{text}}} 1"):
        assert parse_metrics(line, None, 0.0).progress.running in (0, 1)
