"""Parse SGLang's Prometheus text: the counters that prove progress, and the metrics that caovan
shows.

The scheduler counts tokens at every step (`realtime_tokens_total`), the HTTP server counts those of
finished requests, and the times. All series of a name are summed, except parts of another one. A
missing name counts as 0 and never moves.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from caovand.core.figures.counters import Counters, Reading
from caovand.core.health.observation import ProgressCounters
from caovand.engines.common.histogram_lines import Buckets, histogram_of

PREFIX = "sglang:"
COUNTERS = {
    "num_requests_total": "requests_finished",
    "num_aborted_requests_total": "aborted",
    "cuda_graph_passes_total": "iterations",
    "num_running_reqs": "running",
    "num_queue_reqs": "waiting",
    "token_usage": "kv_cache_usage",
    "num_retracted_requests_total": "preemptions",
    "prompt_tokens_total": "prefix_queries",
    "cached_tokens_total": "prefix_hits",
}
QUEUES = ("num_running_reqs", "num_queue_reqs")
"""Gauges that count all priorities together, and each priority again."""
FIRST_TOKEN = "time_to_first_token_seconds"
HISTOGRAMS = {FIRST_TOKEN: "first_token_s", "inter_token_latency_seconds": "token_s"}
COUNTER_BY_MODE = {"prefill_compute": "prompt_tokens", "decode": "generation_tokens"}
MAX_COUNT = float(1 << 53)
"""The largest value that is accepted as a count."""
_LINE = re.compile(r"sglang:(\w{1,80})(?:\{(.{0,4000})\})? ([0-9.eE+-]{1,40})\s*$")
_ONE_PRIORITY = re.compile(r'(?:^|,)priority="[^"]')
"""The label of a queue that is part of the queue without a priority."""
_WHOLE_ANSWERS = re.compile(r'(?:^|,)is_streaming="false"')
"""The label of requests without a stream, whose first output is many tokens or all of them."""
_MODE = re.compile(r'(?:^|,)mode="(\w{1,40})"')


def parse_metrics(text: str, pending: int | None, at: float) -> Reading:
    """The counters in a `/metrics` answer; it has no other count of pending requests."""
    sums = dict.fromkeys((*COUNTERS.values(), *COUNTER_BY_MODE.values()), 0.0)
    histograms = {name: Buckets() for name in HISTOGRAMS.values()}
    shares = 0
    for line in text.splitlines():
        match = _LINE.match(line) if line.startswith(PREFIX) else None
        if match is None:
            continue
        name = _counter(match[1], match[2] or "")
        histogram = None if name else _histogram(match[1], match[2] or "")
        if name is None and histogram is None:
            continue
        try:
            number = float(match[3])
        except ValueError:
            continue
        if not 0 <= number <= MAX_COUNT:
            continue
        if name is not None:
            sums[name] += number
            shares += name == "kv_cache_usage"
        elif histogram is not None:
            histograms[histogram].add(match[1], line, number)
    sums["kv_cache_usage"] /= max(shares, 1)  # a fraction of each scheduler's cache, so the mean
    more: dict[str, Any] = {
        name: sums.pop(name) for name in ("preemptions", "prefix_queries", "prefix_hits")
    }
    ended = sums["requests_finished"] + sums.pop("aborted")
    progress = ProgressCounters(
        **sums, drafted_tokens=0, accepted_tokens=0, pending=pending, at=at, requests_ended=ended
    )
    counters = Counters(
        prompt_tokens=progress.prompt_tokens,
        generation_tokens=progress.generation_tokens,
        requests=progress.requests_finished,
        steps=progress.iterations,
        **more,
    )
    times: dict[str, Any] = {name: buckets.histogram() for name, buckets in histograms.items()}
    return Reading(progress, replace(counters, **times))


def _counter(name: str, labels: str) -> str | None:
    if name != "realtime_tokens_total":
        part = name in QUEUES and _ONE_PRIORITY.search(labels)
        return None if part else COUNTERS.get(name)
    mode = _MODE.search(labels)
    return COUNTER_BY_MODE.get(mode[1]) if mode else None


def _histogram(key: str, labels: str) -> str | None:
    name = histogram_of(key)
    if name == FIRST_TOKEN and _WHOLE_ANSWERS.search(labels):
        return None
    return HISTOGRAMS.get(name)
