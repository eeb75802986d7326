"""Reads vLLM's Prometheus text into the counters that prove progress.

Names are the same from 0.19 to 0.33. vLLM's own counters come from its engine process and freeze
with it; its HTTP server counts every request that ended. All series of a name are summed: one for
each engine, reason and model. A missing name counts as 0 and never moves.
"""

from __future__ import annotations

import re

from caovand.core.health.observation import Progress

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

LARGEST = float(1 << 53)
"""A value above this, or below 0, is neither a count nor a share."""

# A refused request (4xx) never reached the engine.
_ENDED = re.compile(
    r'http_requests_total\{handler="/v1/(?:completions|chat/completions|responses|messages)",'
    r'method="POST",status="[25]xx"\} '
)


def parse_metrics(text: str, load: int | None, at: float) -> Progress:
    """The counters in a `/metrics` answer; `load` is the count of `/load`, None without one.

    Lines that do not parse are skipped: a partial answer is better than none.
    """
    sums = dict.fromkeys(COUNTERS.values(), 0.0)
    engines = 0
    sums["requests_ended"] = 0.0
    for line in text.splitlines():
        ended = _ENDED.match(line)
        name = "requests_ended" if ended else COUNTERS.get(line[: _name_end(line)])
        if name is None:
            continue
        try:
            value = float(line[max(line.rfind("}") + 1, _name_end(line)) :].split()[0])
        except (ValueError, IndexError):
            continue
        if not 0 <= value <= LARGEST:  # NaN is a gauge that was never set
            continue
        sums[name] += value
        engines += name == "kv_cache_usage"
    sums["kv_cache_usage"] /= max(engines, 1)  # a share of each engine's cache, so the mean
    return Progress(**sums, pending=load, at=at)


def _name_end(line: str) -> int:
    brace = line.find("{")
    return brace if brace >= 0 else line.find(" ")
