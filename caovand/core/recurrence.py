"""A failure that comes back: each time after long serving, and so never in a row."""

from __future__ import annotations

from dataclasses import dataclass

RECALL_S = 6 * 3600.0
"""Two failures that lie further apart have nothing to do with each other."""


@dataclass(frozen=True)
class Recurrence:
    """How often one failure of one plan has come, serving in between or not; `at` is the last."""

    failure: str = ""
    plan: str = ""
    count: int = 0
    at: float = 0.0

    def after(self, failure: str, plan: str, at: float) -> Recurrence:
        """This with one more failure, `at` monotonic seconds."""
        same = (failure, plan) == (self.failure, self.plan) and at - self.at <= RECALL_S
        return Recurrence(failure, plan, self.count + 1 if same else 1, at)


NEVER = Recurrence()
