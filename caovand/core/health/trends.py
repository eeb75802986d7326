"""Trends over minutes: useless drafts, and decoding slower than before.

Both compare intervals of the counters. Slowness is relative to the median of this child's own pure
decoding intervals, so no model, card or load needs a threshold. It is reported, never acted on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import median

from caovand.core.health.drafting import AcceptanceTrend
from caovand.core.health.observation import ProgressCounters

INTERVAL_S = 10.0
HISTORY = 60  # rates kept
MIN_RATES = 12  # minimum rates before slowness is reported
SLOW_SHARE = 0.3
SLOW_INTERVALS = 6


@dataclass(frozen=True)
class Trend:
    """The current interval, and the results of earlier ones."""

    began: ProgressCounters | None = None
    drafting: AcceptanceTrend = field(default_factory=AcceptanceTrend)
    rates: tuple[float, ...] = ()
    slow: int = 0


def follow(trend: Trend, now: ProgressCounters) -> tuple[Trend, tuple[str, ...]]:
    """Add a reading of the counters; return the new trend and texts worth reporting."""
    began = trend.began
    if began is None or now.generation_tokens < began.generation_tokens:
        return replace(trend, began=now), ()
    if now.at - began.at < INTERVAL_S:
        return trend, ()
    drafted = now.drafted_tokens - began.drafted_tokens
    accepted = now.accepted_tokens - began.accepted_tokens
    trend = replace(trend, began=now, drafting=trend.drafting.after(drafted, accepted))
    rate = _decoding_rate(began, now)
    return (trend, ()) if rate is None else _compare(trend, rate)


def _decoding_rate(began: ProgressCounters, now: ProgressCounters) -> float | None:
    """Tokens per second and request, if the same requests decoded throughout the interval."""
    steady = began.running == now.running and began.running > 0
    if not steady or now.prompt_tokens != began.prompt_tokens:
        return None
    tokens = now.generation_tokens - began.generation_tokens
    return tokens / (now.at - began.at) / now.running if tokens else None


def _compare(trend: Trend, rate: float) -> tuple[Trend, tuple[str, ...]]:
    usual = median(trend.rates) if len(trend.rates) >= MIN_RATES else None
    if usual is None or rate >= usual * SLOW_SHARE:
        was_reported = trend.slow >= SLOW_INTERVALS and usual is not None
        kept = (*trend.rates, rate)[-HISTORY:]
        text = f"decoding is back at {rate:.1f} tokens/s per request"
        return replace(trend, rates=kept, slow=0), ((text,) if was_reported else ())
    # Slow intervals stay out of the history that they are compared with.
    trend = replace(trend, slow=trend.slow + 1)
    if trend.slow != SLOW_INTERVALS:
        return trend, ()
    text = f"decoding at {rate:.1f} tokens/s per request, compared with {usual:.1f} usually"
    return trend, (text,)
