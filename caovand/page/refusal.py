"""A refused request: an HTTP status and a problem."""

from __future__ import annotations

from typing import Any

from caovand.core.problem import Problem, ProblemError


class Refusal(ProblemError):
    """Raised by handlers."""

    def __init__(self, status: int, cannot: str, fact: str, remedy: str) -> None:
        super().__init__(cannot, fact, remedy)
        self.status = status

    @property
    def document(self) -> dict[str, Any]:
        """The JSON document to send."""
        return document(self.problem)


def document(problem: Problem) -> dict[str, Any]:
    """A problem as a JSON document."""
    fields = {"cannot": problem.cannot, "fact": problem.fact, "remedy": problem.remedy}
    return {"error": fields}
