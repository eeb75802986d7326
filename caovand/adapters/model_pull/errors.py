"""The one error of downloading and keeping models; whoever catches it prints it and exits 1."""

from __future__ import annotations

from caovand.core.problem import Problem


class PullError(Exception):
    """Something kept a model from being downloaded, checked or removed."""

    def __init__(self, cannot: str, fact: str, remedy: str) -> None:
        self.problem = Problem(cannot, fact, remedy)
        super().__init__(str(self.problem))
