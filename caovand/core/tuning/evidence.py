"""Measurements of drafting by depth and context length.

Only steps with a single request count: with more, a step's cost differs. Contexts are grouped by
length, because attention and acceptance depend on it: otherwise long conversations at one depth
would be compared with short ones at another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest

from caovand.core.figures.track import TrackPoint

DEPTHS = range(7)
"""The depths that are compared for a model's own head."""
MAX_MEASURED_DEPTH = 32
"""The deepest that is measured: an operator may choose more than DEPTHS, and a drafter has as many
as it was trained for."""
CONTEXT_BANDS = (0, 8 << 10, 32 << 10)
"""Minimum context of each band, in tokens."""
KEPT_STEPS = 20_000
"""Beyond this many steps, older ones lose weight, because users' requests change."""
MAX_COUNT = 1e12
_LESS_THAN_ONE = 0.5  # counts are whole numbers, but their differences as floats only nearly so


@dataclass(frozen=True)
class Measurements:
    """Steps, their total seconds, and accepted drafts by position."""

    steps: float = 0.0
    seconds: float = 0.0
    accepted: tuple[float, ...] = ()

    def plus(self, more: Measurements) -> Measurements:
        """The sum of both; beyond KEPT_STEPS, the earlier ones lose weight."""
        steps = self.steps + more.steps
        keep = min(max(KEPT_STEPS - more.steps, 0.0) / self.steps, 1.0) if self.steps else 1.0
        if keep == 1.0:
            pairs = zip_longest(self.accepted, more.accepted, fillvalue=0.0)
            return Measurements(steps, self.seconds + more.seconds, tuple(a + b for a, b in pairs))
        scaled = tuple(count * keep for count in self.accepted)
        return Measurements(self.steps * keep, self.seconds * keep, scaled).plus(more)

    @property
    def step_s(self) -> float:
        """Mean seconds per step."""
        return self.seconds / self.steps

    @property
    def tokens(self) -> float:
        """Generated tokens: one per step, plus accepted drafts."""
        return self.steps + sum(self.accepted)


MeasurementsByBand = Mapping[tuple[int, int], Measurements]
"""Measurements by (depth, band)."""


def band_of(context: float) -> int:
    """Index of a context's band."""
    return sum(context >= first for first in CONTEXT_BANDS) - 1


def context_after(earlier: float | None, before: TrackPoint, after: TrackPoint) -> float | None:
    """Context length of the only request, or of the last one if none runs; `earlier` is its value
    at `before`.

    With several prompts since, it is their mean. None if unknown: another request ran, the prompt
    came before the first scrape, or one of several prompts, not all of them short, is still in
    progress. Cache use would say less: in a hybrid model it also counts states, and more with each
    draft.
    """
    more = after.total.since(before.total)
    prompts = more.first_token_s.count
    # With one request at a time, each step yields one output: its first token or one more.
    together = more.steps and prompts + more.step_s.count > more.steps + _LESS_THAN_ONE
    if together or max(_under_way(before), _under_way(after)) > 1:
        return None
    if prompts > 1 and _under_way(after) and band_of(more.prompt_tokens):
        return None
    if prompts:
        return more.prompt_tokens / prompts
    return None if earlier is None else earlier + more.generation_tokens


def measure_steps(
    before: TrackPoint, after: TrackPoint, earlier: float | None, context: float | None
) -> tuple[int, Measurements] | None:
    """Band and steps between two scrapes of one engine; None if nothing counts.

    `earlier` and `context` are the results of `context_after` at both scrapes. Steps of a request
    that was already running count only if both contexts are in the same band.
    """
    more = after.total.since(before.total)
    steps, seconds = more.step_s.count, more.step_s.sum
    if context is None or not steps or not seconds:
        return None
    band = band_of(context)
    if _under_way(before) and (earlier is None or band_of(earlier) != band):
        return None
    accepted = more.accepted[:MAX_MEASURED_DEPTH] if more.drafts else ()
    return band, Measurements(steps, seconds, accepted)


def _under_way(point: TrackPoint) -> float:
    return point.running + point.waiting
