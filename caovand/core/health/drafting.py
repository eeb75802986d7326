"""Drafting that costs time and gains nothing: no draft is accepted, or hardly any after many were.

Hardly any is judged against this child's own past, so that no model or drafting depth needs a
threshold. A change of topic may halve what a draft head gets right; a tenth of it, for minutes, is
a head that reads a spoiled state. Drafts looked up in the text fall as far where nothing repeats.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

FEWEST_DRAFTS = 50.0  # tokens in an interval, for it to count
BARREN_INTERVALS = 6  # in a row with drafts and none accepted
FALLEN_SHARE = 0.1  # of the usual acceptance, under which an interval has fallen
FALLEN_INTERVALS = 18  # in a row: hard to guess for a minute happens, for three hardly
FEWEST_SHARES = 12  # needed before there is a usual acceptance
HISTORY = 360  # shares kept: an hour of drafting


@dataclass(frozen=True)
class Drafting:
    """The shares accepted in intervals with drafts, and the bad ones in a row up to now.

    `barren` counts those with none accepted; `fallen` are shares far under the usual one, which
    become part of the history only once acceptance has come back by itself.
    """

    shares: tuple[float, ...] = ()
    barren: int = 0
    fallen: tuple[float, ...] = ()

    def after(self, drafted: float, accepted: float) -> Drafting:
        """Add an interval with the numbers of tokens that were drafted and accepted in it."""
        if drafted < FEWEST_DRAFTS:
            return replace(self, barren=0) if accepted > 0 else self
        share = max(accepted, 0.0) / drafted
        barren = 0 if accepted > 0 else self.barren + 1
        if share < self._least:
            return replace(self, barren=barren, fallen=(*self.fallen, share))
        shares = (*self.shares, *self.fallen, share)[-HISTORY:]
        return Drafting(shares, barren)

    @property
    def doubtful(self) -> bool:
        """Whether the latest interval was bad, which says little by itself."""
        return self.barren > 0 or bool(self.fallen)

    def collapse(self, *, looked_up: bool) -> str:
        """What has collapsed, "" while nothing has; drafts that are `looked_up` may fall."""
        if self.barren >= BARREN_INTERVALS:
            return f"no draft was accepted in {self.barren} intervals"
        if looked_up or len(self.fallen) < FALLEN_INTERVALS:
            return ""
        return (
            f"{median(self.fallen):.1%} of the drafts were accepted in {len(self.fallen)} "
            f"intervals, usually {median(self.shares):.0%}"
        )

    @property
    def _least(self) -> float:
        """The share under which an interval has fallen, 0 while too little is known."""
        enough = len(self.shares) >= FEWEST_SHARES
        return median(self.shares) * FALLEN_SHARE if enough else 0.0
