"""Prometheus histograms: sums, differences and quantiles."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any


@dataclass(frozen=True)
class Histogram:
    """Observations by bucket: `counts` has one more entry than `bounds`, for values above the last
    bound.

    `sum` is the sum of all observations.
    """

    bounds: tuple[float, ...] = ()
    counts: tuple[float, ...] = (0.0,)
    sum: float = 0.0

    @property
    def count(self) -> float:
        """Number of observations."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Mean of the observations; None without any."""
        return self.sum / self.count if self.count else None

    def plus(self, other: Histogram) -> Histogram:
        """The sum of both; if their buckets differ, as between releases, only the other one."""
        if not other.bounds:
            return self
        if other.bounds != self.bounds:
            return other
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return Histogram(self.bounds, counts, self.sum + other.sum)

    def since(self, before: Histogram) -> Histogram | None:
        """The increase since `before`; None if any count has decreased."""
        if not before.bounds:
            return self
        if before.bounds != self.bounds:
            return None
        counts = tuple(a - b for a, b in zip(self.counts, before.counts, strict=True))
        if min(counts) < 0 or self.sum < before.sum:
            return None
        return Histogram(self.bounds, counts, self.sum - before.sum)

    def quantile(self, share: float) -> float | None:
        """The value that `share` of the observations do not exceed; None without observations.

        Values are assumed to be spread evenly within a bucket, as in PromQL's histogram_quantile.
        Above the last bound, the result is that bound.
        """
        rank = share * self.count
        if not self.count or not self.bounds:
            return None
        below = 0.0
        lows = (0.0, *self.bounds)
        for low, high, upto in zip(lows, self.bounds, accumulate(self.counts), strict=False):
            if upto >= rank and upto > below:
                return low + (high - low) * max(rank - below, 0.0) / (upto - below)
            below = upto
        return self.bounds[-1]

    def describe(self) -> dict[str, Any]:
        """Convert to plain values."""
        return {"bounds": list(self.bounds), "counts": list(self.counts), "sum": self.sum}


EMPTY = Histogram()
