"""A problem as it is reported to people: what cannot be done, why, and what to do about it.

Kept in parts, so that no text has to be cut apart to find the remedy in it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """`cannot` completes "cannot ..."; it is empty where the fact is the whole problem."""

    cannot: str
    fact: str
    remedy: str

    @property
    def message(self) -> str:
        """The problem without its remedy."""
        return f"cannot {self.cannot}: {self.fact}" if self.cannot else self.fact

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}"
