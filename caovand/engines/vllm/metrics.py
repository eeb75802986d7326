"""Parse vLLM's Prometheus text: the counters that prove progress, and the metrics that caovan
shows.

The names are the same from 0.19 to 0.33. vLLM's own counters come from its engine process and
freeze with it; its HTTP server counts every finished request. All series of a name are summed: one
for each engine, reason and model. A missing name counts as 0 and never moves.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from caovand.core.figures.counters import Counters, Reading
from caovand.core.health.observation import ProgressCounters
from caovand.engines.common.histogram_lines import Buckets, histogram_of

COUNTERS = {
    "vllm:generation_tokens_total": "generation_tokens",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:request_success_total": "requests_finished",
    "vllm:iteration_tokens_total_count": "iterations",
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:spec_decode_num_draft_tokens_total": "drafted_tokens",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted_tokens",
    "vllm:kv_cache_usage_perc": "kv_cache_usage",
}
# For display only: no decision depends on them.
OTHER_COUNTERS = {
    "vllm:num_preemptions_total": "preemptions",
    "vllm:prefix_cache_queries_total": "prefix_queries",
    "vllm:prefix_cache_hits_total": "prefix_hits",
    "vllm:spec_decode_num_drafts_total": "drafts",
    "vllm:request_prefill_time_seconds_count": "reads",
    "vllm:request_prefill_time_seconds_sum": "read_seconds",
    "vllm:request_prefill_kv_computed_tokens_sum": "read_tokens",
}
HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": "first_token_s",
    "vllm:request_time_per_output_token_seconds": "token_s",
    "vllm:inter_token_latency_seconds": "step_s",
}
BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"

MAX_COUNT = float(1 << 53)
"""A value above this, or below 0, is neither a count nor a share."""
MAX_POSITIONS = 64

# A refused request (4xx) never reached the engine.
_ENDED = re.compile(
    r'http_requests_total\{handler="(?:/v1/(?:completions|chat/completions|responses|messages'
    r'|embeddings|score|rerank|audio/transcriptions)|/score|/rerank|/classify|/pooling)",'
    r'method="POST",status="[25]xx"\} '
)
_POSITION = re.compile(r'[{,]position="(\d{1,3})"')


def parse_metrics(text: str, load: int | None, at: float) -> Reading:
    """A `/metrics` answer; `load` is the count from `/load`, None if there is none.

    Lines that do not parse are skipped: a partial answer is better than none.
    """
    sums = dict.fromkeys((*COUNTERS.values(), *OTHER_COUNTERS.values()), 0.0)
    sums["requests_ended"] = 0.0
    accepted: dict[int, float] = {}
    histograms = {name: Buckets() for name in HISTOGRAMS.values()}
    engines = 0
    for line in text.splitlines():
        key = line[: _name_end(line)]
        name = (
            "requests_ended" if _ENDED.match(line) else COUNTERS.get(key) or OTHER_COUNTERS.get(key)
        )
        histogram = None if name else HISTOGRAMS.get(histogram_of(key))
        if name is None and histogram is None and key != BY_POSITION:
            continue
        try:
            value = float(line[max(line.rfind("}") + 1, _name_end(line)) :].split()[0])
        except (ValueError, IndexError):
            continue
        if not 0 <= value <= MAX_COUNT:  # NaN marks a gauge that was never set
            continue
        if name is not None:
            sums[name] += value
            engines += name == "kv_cache_usage"
        elif histogram is not None:
            histograms[histogram].add(key, line, value)
        elif (position := _POSITION.search(line)) and int(position[1]) < MAX_POSITIONS:
            accepted[int(position[1])] = accepted.get(int(position[1]), 0.0) + value
    sums["kv_cache_usage"] /= max(engines, 1)  # each engine reports a fraction of its own cache
    if load is not None and engines > 1:  # `load` counts one of the replicas' HTTP servers only
        load = max(load, int(sums["running"] + sums["waiting"]))
    more: dict[str, Any] = {name: sums.pop(name) for name in OTHER_COUNTERS.values()}
    progress = ProgressCounters(**sums, pending=load, at=at)
    counters = Counters(
        prompt_tokens=progress.prompt_tokens,
        generation_tokens=progress.generation_tokens,
        requests=progress.requests_finished,
        steps=progress.iterations,
        drafted_tokens=progress.drafted_tokens,
        accepted=tuple(accepted.get(n, 0.0) for n in range(max(accepted, default=-1) + 1)),
        **more,
    )
    times: dict[str, Any] = {name: buckets.histogram() for name, buckets in histograms.items()}
    return Reading(progress, replace(counters, **times))


def _name_end(line: str) -> int:
    brace = line.find("{")
    return brace if brace >= 0 else line.find(" ")
