"""Parse llama-server's Prometheus text into the counters that prove progress.

The decoding thread answers `/metrics` between two steps: while it hangs, no answer comes. A missing
name counts as 0 and never moves.
"""

from __future__ import annotations

from caovand.core.figures.counters import Counters, Reading
from caovand.core.health.observation import ProgressCounters

PREFIX = "llamacpp:"
COUNTERS = {
    "tokens_predicted_total": "generation_tokens",
    "prompt_tokens_total": "prompt_tokens",
    "n_decode_total": "iterations",
    "requests_processing": "running",
    "requests_deferred": "waiting",
    "spec_decode_num_draft_tokens_total": "drafted_tokens",
    "spec_decode_num_accepted_tokens_total": "accepted_tokens",
    "prompt_seconds_total": "read_seconds",
}
MAX_COUNT = float(1 << 53)
"""The largest value that is accepted as a count."""


def parse_metrics(text: str, pending: int | None, at: float) -> Reading:
    """The counters in a `/metrics` answer; it has no other count of pending requests."""
    sums = {
        **dict.fromkeys(COUNTERS.values(), 0.0),
        "requests_finished": 0.0,
        "kv_cache_usage": 0.0,
    }
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        counter = COUNTERS.get(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else None
        if counter is None:
            continue
        try:
            number = float(value)
        except ValueError:
            continue
        if 0 <= number <= MAX_COUNT:
            sums[counter] = number
    read_seconds = sums.pop("read_seconds")
    progress = ProgressCounters(**sums, pending=pending, at=at)
    counters = Counters(
        prompt_tokens=progress.prompt_tokens,
        generation_tokens=progress.generation_tokens,
        steps=progress.iterations,
        drafted_tokens=progress.drafted_tokens,
        read_tokens=progress.prompt_tokens,
        read_seconds=read_seconds,
    )
    return Reading(progress, counters)
