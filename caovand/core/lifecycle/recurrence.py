"""Count how often each kind of failure recurred: in a row, and after long serving."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

RECALL_S = 6 * 3600.0
"""Failures further apart than this, with stable serving in between, are unrelated."""


@dataclass(frozen=True)
class Recurrence:
    """Counts how often `plan` failed, by kind of failure; `count` is the latest kind's.

    `seen` has each kind's number and the monotonic time of its latest occurrence.
    """

    plan: str = ""
    seen: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    count: int = 0

    def after(self, kind: str, plan: str, at: float, *, in_a_row: bool = False) -> Recurrence:
        """Add a failure; `in_a_row` means no stable serving in between, so that earlier ones never
        expire."""
        seen = self.seen if plan == self.plan else {}
        if not in_a_row:
            seen = {k: (n, last) for k, (n, last) in seen.items() if at - last <= RECALL_S}
        count = seen[kind][0] + 1 if kind in seen else 1
        return Recurrence(plan, {**seen, kind: (count, at)}, count)


NO_RECURRENCE = Recurrence()
