"""Decide which turns from a prefix cache are wrong. This module uses neither torch nor vLLM.

A turn's distances are those of its logits from the reference, the largest at each place of the
answer. A turn is doubtful if it is beyond the bound, which is the farthest of the turns served
without a cache and of the references disturbed by one unit of rounding. In a 16-bit cache a
doubtful turn is wrong.

A cache of 8 or 4 bits has rarer and larger differences: one unit of half precision may move a
number to the next of 256 or 16 values, and a sample of 48 turns misses most of them. There, a
doubtful turn is served again without the cache, its own reference is disturbed several times, and
it is wrong only if it is farther than all of those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


def farthest(distances: Sequence[float]) -> float:
    """The largest; NaN if one is NaN."""
    return math.nan if any(map(math.isnan, distances)) else max(distances)


def beyond(distances: Sequence[float], bound: float) -> int | None:
    """The first place farther than the bound, or NaN; None if there is none."""
    places = (place for place, distance in enumerate(distances) if not distance <= bound)
    return next(places, None)


@dataclass(frozen=True)
class Doubt:
    """A turn beyond the bound, and what was measured for it alone."""

    run: str
    kind: str
    prompt: int
    cached: int
    """Tokens of the prompt from the prefix cache."""
    place: int
    """The first place of the answer beyond the bound."""
    distance: float
    alone: float | None = None
    """The distance of the turn served again without the cache; None if it was not."""
    disturbed: tuple[float, ...] = ()
    """The distances of its reference, disturbed."""

    @property
    def wrong(self) -> bool:
        """Whether it is farther than all that rounding does to this turn."""
        if self.alone is None:
            return True
        return not self.distance <= farthest([self.alone, *self.disturbed])

    def row(self) -> str:
        """A row of TABLE."""
        alone = "-" if self.alone is None else f"{self.alone:.4f}"
        disturbed = " ".join(f"{moved:.4f}" for moved in self.disturbed) or "-"
        verdict = "wrong" if self.wrong else "right"
        return (
            f"| {self.run} | {self.kind} | {self.prompt} | {self.cached} | {self.place} "
            f"| {self.distance:.4f} | {alone} | {disturbed} | {verdict} |"
        )


TABLE = (
    "| run | doubtful turn | prompt | cached | first beyond at | farthest | served alone "
    "| reference disturbed | |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)
