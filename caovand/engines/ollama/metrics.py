"""Ollama counts nothing: what is read is that it answers.

`/api/ps` lists the models that are loaded. It shows that the server lives, not that a model's
runner does: a hang of that is found by test completions alone.
"""

from __future__ import annotations

from caovand.core.figures.counters import Counters, Reading
from caovand.core.health.observation import Progress


def read_ps(text: str, pending: int | None, at: float) -> Reading:
    """A reading without counts, which is a sign of life."""
    return Reading(Progress(0, 0, 0, 0, 0, 0, 0, 0, 0, pending, at), Counters())
