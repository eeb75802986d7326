"""Histograms as Prometheus has them: added, subtracted, and asked for quantiles."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any


@dataclass(frozen=True)
class Histogram:
    """Observations by bucket: `counts` has one entry more than `bounds`, for all above the last.

    `sum` is that of all observations.
    """

    bounds: tuple[float, ...] = ()
    counts: tuple[float, ...] = (0.0,)
    sum: float = 0.0

    @property
    def count(self) -> float:
        """How many observations there are."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """The mean observation, None without any."""
        return self.sum / self.count if self.count else None

    def plus(self, other: Histogram) -> Histogram:
        """Both together; of two with different buckets, as of two releases, the other alone."""
        if not other.bounds:
            return self
        if other.bounds != self.bounds:
            return other
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return Histogram(self.bounds, counts, self.sum + other.sum)

    def since(self, before: Histogram) -> Histogram | None:
        """What came after `before`; None if anything is less than it was."""
        if not before.bounds:
            return self
        if before.bounds != self.bounds:
            return None
        counts = tuple(a - b for a, b in zip(self.counts, before.counts, strict=True))
        if min(counts) < 0 or self.sum < before.sum:
            return None
        return Histogram(self.bounds, counts, self.sum - before.sum)

    def quantile(self, share: float) -> float | None:
        """The value that `share` of the observations do not exceed, None without observations.

        Within a bucket values count as evenly spread, as in PromQL's histogram_quantile; above the
        last bound nothing is known but that bound.
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
        """As plain values."""
        return {"bounds": list(self.bounds), "counts": list(self.counts), "sum": self.sum}


EMPTY = Histogram()
