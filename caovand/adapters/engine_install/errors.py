"""The one error of making and switching engines; whoever catches it prints it and exits 1."""

from __future__ import annotations

from caovand.core.problem import Problem


class EngineError(Exception):
    """Something kept an engine from being made, proven or switched."""

    def __init__(self, cannot: str, fact: str, remedy: str) -> None:
        self.problem = Problem(cannot, fact, remedy)
        super().__init__(str(self.problem))
