"""What was measured of drafting, by depth and length of the context.

Only steps of one request alone count: with more at once a step costs something else. Contexts are
kept apart by length, since attention and acceptance change with it: otherwise long conversations at
one depth would be compared with short ones at another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest

from caovand.core.figures.track import Point

DEPTHS = range(7)
DEEPEST = 8  # an operator's own depth may be deeper than those that are modelled
BANDS = (0, 8 << 10, 32 << 10)
"""The shortest context of each band, in tokens."""
KEPT_STEPS = 20_000
"""Of more, the older ones count less: what people ask for changes."""
LARGEST = 1e12
_ALONE = 1.05  # outputs for each step of the engine: of two requests at once there are 2


@dataclass(frozen=True)
class Seen:
    """Steps, their seconds, and drafts accepted by position."""

    steps: float = 0.0
    seconds: float = 0.0
    accepted: tuple[float, ...] = ()

    def plus(self, more: Seen) -> Seen:
        """Both together; of more than KEPT_STEPS the share of the earlier ones shrinks."""
        steps = self.steps + more.steps
        keep = min(max(KEPT_STEPS - more.steps, 0.0) / self.steps, 1.0) if self.steps else 1.0
        if keep == 1.0:
            pairs = zip_longest(self.accepted, more.accepted, fillvalue=0.0)
            return Seen(steps, self.seconds + more.seconds, tuple(a + b for a, b in pairs))
        scaled = tuple(count * keep for count in self.accepted)
        return Seen(self.steps * keep, self.seconds * keep, scaled).plus(more)

    @property
    def step_s(self) -> float:
        """The mean seconds of a step."""
        return self.seconds / self.steps

    @property
    def tokens(self) -> float:
        """Each step's own token and the drafts accepted."""
        return self.steps + sum(self.accepted)


Evidence = Mapping[tuple[int, int], Seen]
"""What was measured, by depth and number of the band."""


def band_of(context: float) -> int:
    """The number of the band of a context."""
    return sum(context >= first for first in BANDS) - 1


def measured(before: Point, after: Point, cache_tokens: float) -> tuple[int, Seen] | None:
    """The band and the steps between two scrapes of one engine; None where nothing counts.

    The context is the share of the cache of `cache_tokens` in use; of requests that came and went
    between the scrapes, their mean prompt.
    """
    if max(before.running + before.waiting, after.running + after.waiting) > 1:
        return None
    more = after.total.since(before.total)
    steps, seconds = more.step_s.count, more.step_s.sum
    if not steps or not seconds or (more.steps and steps > more.steps * _ALONE):
        return None
    prompt = more.prompt_tokens / max(more.requests, 1)
    held = max(before.kv_cache_usage, after.kv_cache_usage) * cache_tokens
    accepted = more.accepted[:DEEPEST] if more.drafts else ()
    return band_of(max(prompt, held)), Seen(steps, seconds, accepted)
