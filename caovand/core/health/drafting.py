"""Detect useless drafting: no draft is accepted, or hardly any after many were.

"Hardly any" is relative to this child's own history, so no model or draft depth needs a threshold.
A change of topic can halve acceptance; a drop to a tenth for minutes means that the draft head
reads corrupt state. Drafts looked up in the text drop just as far when nothing repeats.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

MIN_DRAFTS = 50.0  # minimum draft tokens for an interval to count
BARREN_INTERVALS = 6  # consecutive intervals with drafts but none accepted
FALLEN_SHARE = 0.1  # share of the usual acceptance below which an interval counts as bad
FALLEN_INTERVALS = 18
"""Consecutive bad intervals: one unpredictable minute is normal, three are not."""
MIN_SHARES = 12  # minimum shares before a usual acceptance is known
HISTORY = 360  # shares kept: an hour of drafting


@dataclass(frozen=True)
class AcceptanceTrend:
    """Acceptance by interval, and the current run of bad intervals.

    `barren` counts intervals without any accepted draft; `fallen` are shares far below the usual
    one, which join the history only once acceptance has recovered on its own.
    """

    shares: tuple[float, ...] = ()
    barren: int = 0
    fallen: tuple[float, ...] = ()

    def after(self, drafted: float, accepted: float) -> AcceptanceTrend:
        """Add an interval with its numbers of drafted and accepted tokens."""
        if drafted < MIN_DRAFTS:
            return replace(self, barren=0) if accepted > 0 else self
        share = max(accepted, 0.0) / drafted
        barren = 0 if accepted > 0 else self.barren + 1
        if share < self._threshold:
            return replace(self, barren=barren, fallen=(*self.fallen, share))
        shares = (*self.shares, *self.fallen, share)[-HISTORY:]
        return AcceptanceTrend(shares, barren)

    @property
    def doubtful(self) -> bool:
        """Whether the latest interval was bad, which means little on its own."""
        return self.barren > 0 or bool(self.fallen)

    def collapse(self, *, lookup_drafts: bool) -> str:
        """Describe the collapse, "" if there is none; `lookup_drafts` drafts may drop."""
        if self.barren >= BARREN_INTERVALS:
            return f"no draft was accepted in {self.barren} intervals"
        if lookup_drafts or len(self.fallen) < FALLEN_INTERVALS:
            return ""
        return (
            f"{median(self.fallen):.1%} of the drafts were accepted in {len(self.fallen)} "
            f"intervals, compared with {median(self.shares):.0%} usually"
        )

    @property
    def _threshold(self) -> float:
        """The acceptance below which an interval counts as bad; 0 while too little is known."""
        enough = len(self.shares) >= MIN_SHARES
        return median(self.shares) * FALLEN_SHARE if enough else 0.0
