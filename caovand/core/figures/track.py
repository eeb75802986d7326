"""A slot's metrics over time: totals over restarts, and the readings of five minutes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from caovand.core.figures.counters import NOTHING, Counters, Reading, drafting, ratio

RECENT_S = 300.0
STALE_S = 20.0  # a reading older than this no longer describes the engine
DIGITS = 4
LONG_READ_TOKENS = 1000.0
"""Shorter prompts take as long as a step, however fast the engine reads."""
RATES = ("prompt_tokens", "generation_tokens", "requests")
QUANTILES = {
    "first_token_p50_s": ("first_token_s", 0.5),
    "first_token_p99_s": ("first_token_s", 0.99),
    "token_p50_s": ("token_s", 0.5),
    "token_p99_s": ("token_s", 0.99),
}
"""Quantiles by their name in the history: the histogram, and the share of values below."""


def quantiles_of(counters: Counters) -> dict[str, Any]:
    """Each quantile's value by its name; None without values."""
    return {
        name: getattr(counters, times).quantile(share) for name, (times, share) in QUANTILES.items()
    }


@dataclass(frozen=True)
class TrackPoint:
    """The totals at one moment, and the engine's requests in progress."""

    at: float
    total: Counters
    running: float = 0.0
    waiting: float = 0.0
    kv_cache_usage: float = 0.0


@dataclass(frozen=True)
class Track:
    """`total` sums all engines so far; `last` is the current engine's latest reading.

    `recent` are the points of the last RECENT_S seconds and the one before them. `read_tokens` and
    `read_seconds` are of long prompts that the current engine has read.
    """

    total: Counters = NOTHING
    last: Reading | None = None
    recent: tuple[TrackPoint, ...] = ()
    read_tokens: float = 0.0
    read_seconds: float = 0.0

    @property
    def reading_rate(self) -> float | None:
        """Tokens per second at which the current engine reads a long prompt; None if it has read
        none."""
        return ratio(self.read_tokens, self.read_seconds)


def begin_engine(track: Track) -> Track:
    """Start with a new engine, whose counters begin at 0."""
    return replace(track, last=None, read_tokens=0.0, read_seconds=0.0)


def follow(track: Track, reading: Reading) -> Track:
    """Add a reading of the current engine."""
    progress, counters = reading.progress, reading.counters
    before = track.last.counters if track.last else NOTHING
    more = counters.since(before)
    total = track.total.plus(more)
    point = TrackPoint(
        progress.at, total, progress.running, progress.waiting, progress.kv_cache_usage
    )
    kept = [*track.recent, point]
    old = bisect_right([sample.at for sample in kept], progress.at - RECENT_S) - 1
    long = more.read_seconds > 0 and more.read_tokens >= LONG_READ_TOKENS * max(more.reads, 1.0)
    return Track(
        total,
        reading,
        tuple(kept[max(old, 0) :]),
        track.read_tokens + more.read_tokens * long,
        track.read_seconds + more.read_seconds * long,
    )


def describe(track: Track, now: float) -> dict[str, Any]:
    """The metrics as a document; rates and gauges are None while no engine answers.

    `per_s` are rates between the latest two readings, which are `interval_s` apart. Quantiles,
    cache hits and drafts cover the last RECENT_S seconds.
    """
    live = track.last is not None and now - track.last.progress.at <= STALE_S
    before, latest = _latest_points(track) if live else (None, None)
    first = track.recent[0].total if track.recent else NOTHING
    window = track.total.since(first)
    return {
        "age_s": round(now - track.last.progress.at, 3) if track.last else None,
        "interval_s": round(latest.at - before.at, 3) if before and latest else None,
        "per_s": rates(before, latest),
        "running": latest.running if latest else None,
        "waiting": latest.waiting if latest else None,
        "kv_cache_usage": round(latest.kv_cache_usage, DIGITS) if latest else None,
        "first_token_s": quantiles(window, "first_token_s"),
        "token_s": quantiles(window, "token_s"),
        "step_s": quantiles(window, "step_s"),
        "prefix_hits": round_figure(ratio(window.prefix_hits, window.prefix_queries)),
        "drafting": drafting(window),
        "totals": track.total.describe(),
    }


def series(track: Track, now: float) -> dict[str, list[float | None]]:
    """Readings of the last RECENT_S seconds, one list per metric; `age_s` decreases.

    Rates, quantiles and tokens per step compare a reading with the one before.
    """
    pairs = [(a, b, b.total.since(a.total)) for a, b in pairwise(track.recent)]
    columns: dict[str, list[float | None]] = {"age_s": [round(now - b.at, 1) for _, b, _ in pairs]}
    for name in RATES:
        columns[f"{name}_per_s"] = [_rate(more, name, b.at - a.at) for a, b, more in pairs]
    for name in ("running", "waiting", "kv_cache_usage"):
        columns[name] = [round_figure(getattr(b, name)) for _, b, _ in pairs]
    quantiles = [quantiles_of(more) for *_, more in pairs]
    for name in QUANTILES:
        columns[name] = [round_figure(values[name]) for values in quantiles]
    columns["tokens_per_step"] = [
        (drafting(more) or {}).get("tokens_per_step") for *_, more in pairs
    ]
    return columns


def rates(before: TrackPoint | None, after: TrackPoint | None) -> dict[str, float | None]:
    """Increase per second between two points."""
    if before is None or after is None:
        return dict.fromkeys(RATES)
    more = after.total.since(before.total)
    return {name: _rate(more, name, after.at - before.at) for name in RATES}


def _rate(more: Counters, name: str, seconds: float) -> float | None:
    return round(getattr(more, name) / seconds, 2) if seconds > 0 else None


def quantiles(counters: Counters, name: str) -> Mapping[str, float | None]:
    """The median, the 99th percentile and the mean of a histogram."""
    histogram = getattr(counters, name)
    values = {
        "p50": histogram.quantile(0.5),
        "p99": histogram.quantile(0.99),
        "mean": histogram.mean,
    }
    return {name: round_figure(value, 6) for name, value in values.items()}


def _latest_points(track: Track) -> tuple[TrackPoint | None, TrackPoint]:
    return (track.recent[-2] if len(track.recent) > 1 else None), track.recent[-1]


def round_figure(value: float | None, digits: int = DIGITS) -> float | None:
    """Round a value for charts and tables; None stays None."""
    return None if value is None else round(value, digits)
