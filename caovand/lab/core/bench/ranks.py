"""Test whether two samples differ: Wilcoxon's rank-sum test, two-sided and exact, with ties.

It assumes no distribution, and an outlier counts only by its rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def chance(ours: Sequence[float], other: Sequence[float]) -> float:
    """The p-value: the probability of rank sums this far apart under equal distributions."""
    if not ours or not other:
        return 1.0
    ranks = doubled_ranks([*ours, *other])
    mean = len(ours) * sum(ranks)  # of the rank sum, times the number of values
    seen = abs(sum(ranks[: len(ours)]) * len(ranks) - mean)
    sums = subset_sums(ranks, len(ours))
    far = sum(ways for total, ways in sums.items() if abs(total * len(ranks) - mean) >= seen)
    return far / sum(sums.values())


def least_chance(ours: int, other: int) -> float:
    """The smallest p-value that samples of these sizes can have, without ties."""
    return chance(range(ours), range(ours, ours + other))


def doubled_ranks(values: Sequence[float]) -> list[int]:
    """Twice the 1-based rank of each value; ties share their mean rank."""
    ordered = sorted(values)
    first = {value: place for place, value in reversed(list(enumerate(ordered)))}
    counts = Counter(ordered)
    return [2 * first[value] + counts[value] + 1 for value in values]


def subset_sums(numbers: Sequence[int], size: int) -> Counter[int]:
    """Count, for each sum, the subsets of `size` numbers with that sum."""
    ways: list[Counter[int]] = [Counter() for _ in range(size + 1)]
    ways[0][0] = 1
    for number in numbers:
        for taken in range(size, 0, -1):
            for total, many in ways[taken - 1].items():
                ways[taken][total + number] += many
    return ways[size]
