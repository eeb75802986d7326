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
"""Above this many steps the older ones count less: what people ask for changes."""
LARGEST = 1e12
_LESS_THAN_ONE = 0.5  # counts are whole, their differences as floats nearly so


@dataclass(frozen=True)
class Measurements:
    """Steps, their seconds, and drafts accepted by position."""

    steps: float = 0.0
    seconds: float = 0.0
    accepted: tuple[float, ...] = ()

    def plus(self, more: Measurements) -> Measurements:
        """Both together; of more than KEPT_STEPS the share of the earlier ones shrinks."""
        steps = self.steps + more.steps
        keep = min(max(KEPT_STEPS - more.steps, 0.0) / self.steps, 1.0) if self.steps else 1.0
        if keep == 1.0:
            pairs = zip_longest(self.accepted, more.accepted, fillvalue=0.0)
            return Measurements(steps, self.seconds + more.seconds, tuple(a + b for a, b in pairs))
        scaled = tuple(count * keep for count in self.accepted)
        return Measurements(self.steps * keep, self.seconds * keep, scaled).plus(more)

    @property
    def step_s(self) -> float:
        """The mean seconds of a step."""
        return self.seconds / self.steps

    @property
    def tokens(self) -> float:
        """Each step's own token and the drafts accepted."""
        return self.steps + sum(self.accepted)


Evidence = Mapping[tuple[int, int], Measurements]
"""What was measured, by depth and number of the band."""


def band_of(context: float) -> int:
    """The number of the band of a context."""
    return sum(context >= first for first in BANDS) - 1


def context_after(earlier: float | None, before: Point, after: Point) -> float | None:
    """Tokens of the request that is alone, or of the last that was; `earlier` is this at `before`.

    Of several prompts that came since then it is the mean. None if it is not known: another one
    was there, the prompt came before the first scrape, or one of several prompts, not all short, is
    still under way. The share of the cache in use says less: in a hybrid model it counts states as
    well, more with each draft.
    """
    more = after.total.since(before.total)
    prompts = more.first_token_s.count
    # Of one request alone each step has one output: its first token, or one more.
    together = more.steps and prompts + more.step_s.count > more.steps + _LESS_THAN_ONE
    if together or max(_under_way(before), _under_way(after)) > 1:
        return None
    if prompts > 1 and _under_way(after) and band_of(more.prompt_tokens):
        return None
    if prompts:
        return more.prompt_tokens / prompts
    return None if earlier is None else earlier + more.generation_tokens


def measured(
    before: Point, after: Point, earlier: float | None, context: float | None
) -> tuple[int, Measurements] | None:
    """The band and the steps between two scrapes of one engine; None if nothing counts.

    The contexts are those of `context_after` at both. Steps of a request that was under way before
    count if both are of one band: else some of them may be of another one.
    """
    more = after.total.since(before.total)
    steps, seconds = more.step_s.count, more.step_s.sum
    if context is None or not steps or not seconds:
        return None
    band = band_of(context)
    if _under_way(before) and (earlier is None or band_of(earlier) != band):
        return None
    accepted = more.accepted[:DEEPEST] if more.drafts else ()
    return band, Measurements(steps, seconds, accepted)


def _under_way(point: Point) -> float:
    return point.running + point.waiting
