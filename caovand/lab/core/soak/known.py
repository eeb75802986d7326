"""Known greedy answers, and the meaning of a different answer.

The answers are recorded at the start, while no other request runs, each several times, with and
without a prefix-cache hit. Later ones are compared token by token up to the first difference: all
after it is another text.

Rounding is not a fault: the batch, and the part of a prompt that a cache had, change the order of
summation, so two nearly equal tokens may swap (health/canary.py). Therefore:

- Only wrong data replaces a token that had led by more than canary's MARGIN: a failure.
- Next to other requests, any other difference is counted. It is a failure where such differences
  become more frequent, which rounding does not explain (Fisher's exact test, second half of the
  soak against the first).
- Alone, the second of two answers in a row has the same batch and the same cache hit as one of the
  start: any difference is a failure. The first of the two may have hit whatever part of the
  prompt a cache still holds: within the margin it is counted.
- If an engine reports no logprobs, no margin is known: alone, any difference is a failure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from caovand.core.health.canary import MARGIN, GreedyAnswer

WORD_WITH_SPACE = re.compile(r"\S+\s*|\s+")
FREQUENCY_SIGNIFICANCE = 0.001
"""Significance level for differences under load having become more frequent."""


@dataclass(frozen=True)
class Difference:
    """The first differing token; `margin` is the known token's lead, None if unknown."""

    place: int
    token: str
    known: str
    margin: float | None

    @property
    def wrong(self) -> bool:
        """Whether rounding is ruled out."""
        return self.margin is not None and self.margin > MARGIN

    @property
    def text(self) -> str:
        """Describe the difference."""
        led = "" if self.margin is None else f", which led by {self.margin:.1f} nats"
        return f"token {self.place} is {self.token!r} instead of {self.known!r}{led}"


def as_words(text: str) -> GreedyAnswer:
    """An answer without logprobs, as words with unknown margins."""
    return GreedyAnswer(tuple(WORD_WITH_SPACE.findall(text)), ())


def difference(known: Sequence[GreedyAnswer], now: GreedyAnswer) -> Difference | None:
    """The difference from the known answer with the longest common prefix; None if it equals
    one."""
    differences = [d for d in (_difference(each, now) for each in known) if d]
    return max(differences, key=lambda d: d.place) if len(differences) == len(known) else None


def _difference(known: GreedyAnswer, now: GreedyAnswer) -> Difference | None:
    for place, was in enumerate(known.tokens):
        token = now.tokens[place] if place < len(now.tokens) else ""
        if token != was:
            margin = known.margins[place] if known.margins else None
            return Difference(place + 1, token, was, margin)
    return None


def more_often(before: int, of: int, after: int, of_them: int) -> float:
    """The p-value of at least `after` differences in the second half at equal frequency.

    Fisher's exact test, one-sided: `before` of the first `of`, `after` of the last `of_them`.
    """
    both, every = before + after, of + of_them
    ways = math.comb(every, both)
    upto = min(both, of_them)
    return (
        sum(math.comb(of_them, n) * math.comb(of, both - n) for n in range(after, upto + 1)) / ways
    )
