"""How often each failure of a plan has come: in a row, and again after long serving."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

RECALL_S = 6 * 3600.0
"""With stable serving in between, two failures further apart have nothing to do with each other."""


@dataclass(frozen=True)
class Recurrence:
    """How often the failures of `plan` have come, each kind for itself; `count` is the last's.

    `seen` has each kind's number and when it came last, in monotonic seconds.
    """

    plan: str = ""
    seen: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    count: int = 0

    def after(self, kind: str, plan: str, at: float, *, in_a_row: bool = False) -> Recurrence:
        """This with one more failure; in a row none before it is too long ago."""
        seen = self.seen if plan == self.plan else {}
        if not in_a_row:
            seen = {k: (n, last) for k, (n, last) in seen.items() if at - last <= RECALL_S}
        count = seen[kind][0] + 1 if kind in seen else 1
        return Recurrence(plan, {**seen, kind: (count, at)}, count)


NEVER = Recurrence()
