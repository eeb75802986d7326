"""How many examples a property is tried with: few in `make test`, all in `make test-all`."""

from __future__ import annotations

from hypothesis import settings

BRIEF = 15
"""The examples of a property that asks for no number, in the profile "brief"."""


def examples(number: int) -> settings:
    """So many of them; in the profile "brief" a tenth."""
    brief = settings.default.max_examples == BRIEF
    return settings(max_examples=max(BRIEF, number // 10) if brief else number)
