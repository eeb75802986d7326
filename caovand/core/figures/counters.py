"""An engine's counters, and their accumulation over restarts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import Any

from caovand.core.figures.histogram import EMPTY, Histogram
from caovand.core.health.observation import ProgressCounters


@dataclass(frozen=True)
class Counters:
    """Totals since the engine started; counters that an engine lacks stay 0.

    `prefix_queries` and `prefix_hits` are prompt tokens looked up and found in the prefix cache.
    `accepted` are accepted draft tokens by position, starting with a step's first draft. Times are
    in seconds: to a request's first token, per token of a finished request, and per step of a
    request. `read_tokens` are prompt tokens that were computed, not found in a cache, in
    `read_seconds`, for so many requests as `reads` counts.
    """

    prompt_tokens: float = 0.0
    generation_tokens: float = 0.0
    requests: float = 0.0
    preemptions: float = 0.0
    steps: float = 0.0
    prefix_queries: float = 0.0
    prefix_hits: float = 0.0
    drafts: float = 0.0
    drafted_tokens: float = 0.0
    reads: float = 0.0
    read_tokens: float = 0.0
    read_seconds: float = 0.0
    accepted: tuple[float, ...] = ()
    first_token_s: Histogram = EMPTY
    token_s: Histogram = EMPTY
    step_s: Histogram = EMPTY

    def plus(self, other: Counters) -> Counters:
        """The sum of both."""
        return Counters(**{n: _plus(getattr(self, n), getattr(other, n)) for n in NAMES})

    def since(self, before: Counters) -> Counters:
        """The increase since `before`; everything if a counter has been reset since."""
        differences = {n: _since(getattr(self, n), getattr(before, n)) for n in NAMES}
        if any(value is None for value in differences.values()):
            return self
        return Counters(**differences)

    def describe(self) -> dict[str, Any]:
        """Convert to plain values."""
        document: dict[str, Any] = {}
        for name in NAMES:
            value = getattr(self, name)
            document[name] = value.describe() if isinstance(value, Histogram) else value
        return {**document, "accepted": list(self.accepted)}


NAMES = tuple(entry.name for entry in fields(Counters))
NOTHING = Counters()


def _plus(value: Any, other: Any) -> Any:
    if isinstance(value, Histogram):
        return value.plus(other)
    if isinstance(value, tuple):  # the draft depth may have increased
        return tuple(a + b for a, b in zip_longest(value, other, fillvalue=0.0))
    return value + other


def _since(now: Any, before: Any) -> Any:
    if isinstance(now, Histogram):
        return now.since(before)
    if isinstance(now, tuple):
        if len(now) < len(before):
            return None
        more = tuple(a - b for a, b in zip_longest(now, before, fillvalue=0.0))
        return more if min(more, default=0.0) >= 0 else None
    return now - before if now >= before else None


@dataclass(frozen=True)
class Reading:
    """One scrape of an engine: the evidence of its progress, and all its counters."""

    progress: ProgressCounters
    counters: Counters


def ratio(part: float, whole: float) -> float | None:
    """A share; None if the whole is zero."""
    return part / whole if whole else None


def drafting(counters: Counters) -> Mapping[str, Any] | None:
    """Acceptance by draft position, and tokens per step; None without drafts."""
    if not counters.drafts:
        return None
    return {
        "accepted": [round(count / counters.drafts, 4) for count in counters.accepted],
        "tokens_per_step": round(1 + sum(counters.accepted) / counters.drafts, 3),
    }
