"""A problem as it is reported to people: what cannot be done, why, and what to do about it.

Kept in parts, so that no text has to be cut apart to find the remedy in it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """`cannot` completes "cannot ..."; it is empty where the fact is the whole problem.

    `remedy` is empty where there is nothing to do.
    """

    cannot: str
    fact: str
    remedy: str

    @property
    def message(self) -> str:
        """The problem without its remedy."""
        return f"cannot {self.cannot}: {self.fact}" if self.cannot else self.fact

    def __str__(self) -> str:
        return "; ".join(filter(None, (self.message, self.remedy)))


class ProblemError(Exception):
    """Raised with a problem to report, which is its text too."""

    def __init__(self, cannot: str, fact: str, remedy: str) -> None:
        self.problem = Problem(cannot, fact, remedy)
        super().__init__(str(self.problem))
