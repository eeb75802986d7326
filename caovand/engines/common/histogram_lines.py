"""Convert histograms in Prometheus text into the form that all engines share."""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict

from caovand.core.figures.histogram import Histogram

MAX_BUCKETS = 128

_PARTS = re.compile(r"_(?:bucket|sum)\Z")
_BOUND = re.compile(r'[{,]le="([0-9.e+-]{1,32}|\+Inf)"')


def histogram_of(key: str) -> str:
    """The histogram to which a line of buckets or a sum belongs."""
    return _PARTS.sub("", key)


class Buckets:
    """A Prometheus histogram, whose buckets count all values up to their bound."""

    def __init__(self) -> None:
        self._upto: defaultdict[float, float] = defaultdict(float)
        self._sum = 0.0

    def add(self, key: str, line: str, value: float) -> None:
        """Add one line of the histogram."""
        if key.endswith("_sum"):
            self._sum += value
        elif bound := _BOUND.search(line):
            with contextlib.suppress(ValueError):
                self._upto[float(bound[1])] += value

    def histogram(self) -> Histogram:
        """The histogram read so far; empty if its lines form none."""
        bounds = sorted(self._upto)
        if not 1 < len(bounds) <= MAX_BUCKETS or bounds[-1] != float("inf") or bounds[0] < 0:
            return Histogram()
        upto = [self._upto[bound] for bound in bounds]
        counts = tuple(b - a for a, b in zip([0.0, *upto], upto, strict=False))
        return Histogram(tuple(bounds[:-1]), counts, self._sum) if min(counts) >= 0 else Histogram()
