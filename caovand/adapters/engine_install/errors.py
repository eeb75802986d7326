"""The one error of making and switching engines; callers print it and exit with status 1."""

from __future__ import annotations

from caovand.core.problem import ProblemError


class EngineError(ProblemError):
    """An engine could not be made, proven or switched."""
