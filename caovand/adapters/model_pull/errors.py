"""The one error of downloading and keeping models; whoever catches it prints it and exits 1."""

from __future__ import annotations

from caovand.core.problem import ProblemError


class PullError(ProblemError):
    """Something kept a model from being downloaded, checked or removed."""
