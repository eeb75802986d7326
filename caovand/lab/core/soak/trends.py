"""Detect a steady rise of a series: Theil and Sen's slope, Mann and Kendall's test.

Both are free of distribution assumptions and robust against outliers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

TrendPoint = tuple[float, float]
"""Seconds, and a value."""

BINS = 36
MIN_BINS = 9
"""Minimum number of points for a conclusion."""
SIGNIFICANCE = 0.001
"""Significance level: a rise with a higher probability under noise counts as noise."""
MIN_HALF_SHARE = 1 / 3
"""Minimum share of the overall slope in each half: a single step, or growth that levels off, is no
leak."""
LEAK_SIGMAS = 2.0
"""A leak must exceed this many standard deviations of the points around the fitted line."""
NORMAL = 1.4826
"""Standard deviation of a normal distribution, in median absolute deviations."""


@dataclass(frozen=True)
class Growth:
    """A series' rise along its slope between the first and last point, in total and per hour."""

    gained: float
    per_hour: float


def growth(points: Sequence[TrendPoint], least: float) -> Growth | None:
    """The growth of a series if it is at least `least`, beyond noise, and present throughout; else
    None."""
    kept = bin_points(points)
    if len(kept) < MIN_BINS:
        return None
    slope = theil_sen(kept)
    middle = len(kept) // 2
    # Both halves contain the middle, so that neither misses a step there.
    halves = kept[: middle + 1], kept[middle:]
    gained = slope * (kept[-1][0] - kept[0][0])
    rest = [value - slope * at for at, value in kept]
    spread = NORMAL * median(abs(value - median(rest)) for value in rest)
    leaks = (
        gained > max(least, LEAK_SIGMAS * spread)
        and rise_chance([value for _, value in kept]) <= SIGNIFICANCE
        and min(map(theil_sen, halves)) >= MIN_HALF_SHARE * slope
    )
    return Growth(gained, slope * 3600) if leaks else None


def bin_points(points: Sequence[TrendPoint], most: int = BINS) -> list[TrendPoint]:
    """Reduce a series to at most `most` points, each the median of equally many adjacent ones."""
    size = max(math.ceil(len(points) / most), 1)
    groups = [points[n : n + size] for n in range(0, len(points), size)]
    return [
        (median(at for at, _ in group), median(value for _, value in group)) for group in groups
    ]


def theil_sen(points: Sequence[TrendPoint]) -> float:
    """The median slope over all pairs of points."""
    slopes = [
        (b - a) / (after - before)
        for n, (before, a) in enumerate(points)
        for after, b in points[n + 1 :]
        if after > before
    ]
    return median(slopes) if slopes else 0.0


def rise_chance(values: Sequence[float]) -> float:
    """The p-value of the rise, by Mann and Kendall's test."""
    number = len(values)
    score = sum((b > a) - (b < a) for n, a in enumerate(values) for b in values[n + 1 :])
    ties = sum(count * (count - 1) * (2 * count + 5) for count in _counts(values))
    variance = (number * (number - 1) * (2 * number + 5) - ties) / 18
    if variance <= 0 or score <= 0:
        return 1.0
    return math.erfc((score - 1) / math.sqrt(2 * variance)) / 2


def _counts(values: Sequence[float]) -> list[int]:
    return [values.count(value) for value in set(values)]
