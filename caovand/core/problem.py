"""A problem as reported to people: what cannot be done, why, and the remedy.

The parts are separate, so no text has to be parsed to find the remedy.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """`cannot` completes "cannot ..."; it is empty if the fact says it all.

    `remedy` is empty if nothing needs doing.
    """

    cannot: str
    fact: str
    remedy: str

    @classmethod
    def stated(cls, what: str | Problem) -> Problem:
        """The problem itself, or that of a text: its fact, and after the first semicolon its
        remedy."""
        if isinstance(what, Problem):
            return what
        fact, _, remedy = what.partition("; ")
        return cls("", fact, remedy)

    @property
    def message(self) -> str:
        """The problem without its remedy."""
        return f"cannot {self.cannot}: {self.fact}" if self.cannot else self.fact

    def __str__(self) -> str:
        return "; ".join(filter(None, (self.message, self.remedy)))


def reason_of(error: BaseException) -> str:
    """The operating system's reason for an error, without the path; else the error's text."""
    return str(getattr(error, "strerror", None) or error)


class ProblemError(Exception):
    """Raised with a problem to report; its text is the problem's."""

    def __init__(self, cannot: str, fact: str, remedy: str) -> None:
        self.problem = Problem(cannot, fact, remedy)
        super().__init__(str(self.problem))
