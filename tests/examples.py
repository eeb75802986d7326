"""The number of examples per property: few in `make test`, all in `make test-all`."""

from __future__ import annotations

from hypothesis import settings

BRIEF = 15
"""The number of examples in the profile "brief", unless a property sets its own."""


def examples(number: int) -> settings:
    """This number of examples; a tenth of it in the profile "brief"."""
    brief = settings.default.max_examples == BRIEF
    return settings(max_examples=max(BRIEF, number // 10) if brief else number)
