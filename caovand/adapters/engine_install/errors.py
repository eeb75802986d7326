"""The one error of making and switching engines; whoever catches it prints it and exits 1."""

from __future__ import annotations

from caovand.core.problem import ProblemError


class EngineError(ProblemError):
    """Something kept an engine from being made, proven or switched."""
