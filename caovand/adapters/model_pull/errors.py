"""The one error of downloading and keeping models; callers print it and exit with status 1."""

from __future__ import annotations

from caovand.core.problem import ProblemError


class PullError(ProblemError):
    """A model could not be downloaded, checked or removed."""
