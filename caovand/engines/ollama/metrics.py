"""Ollama has no counters: an answer is the only measurement.

`/api/ps` lists the loaded models. It shows that the server lives, not that a model's runner does:
only test completions detect that a runner hangs.
"""

from __future__ import annotations

from caovand.core.figures.counters import Counters, Reading
from caovand.core.health.observation import ProgressCounters


def read_ps(text: str, pending: int | None, at: float) -> Reading:
    """A reading without counts: a sign of life.

    No counter moves while it works, so pending requests would look like a hang.
    """
    return Reading(ProgressCounters(0, 0, 0, 0, 0, 0, 0, 0, 0, None, at), Counters())
