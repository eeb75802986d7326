"""A message that an engine, a library or the kernel prints when something fails: one row per
message."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from caovand.core.healing.failure import Failure

MAX_LINE = 4000  # the first characters of a line, which patterns see; a prompt may have a million

# cause: the failure itself. generic: a cause that a more specific one nearby explains better.
# consequence: proves a failure, but counts only if no cause is found. wrapper: announces that
# something else failed. benign: looks like a failure but is harmless. unnamed: no row knows it.
Kind = Literal["cause", "generic", "consequence", "wrapper", "benign", "unnamed"]
SERVED: Mapping[str, Failure] = {"serving": "engine-died"}
"""A verified engine lacks nothing: while it serves, the cause is an unusual request."""


@dataclass(frozen=True)
class Signature:
    """One message: where it counts, its meaning, and the captured values (named groups).

    `by_phase` overrides `failure` in phases in which the same message has another meaning.
    """

    id: str
    kind: Kind
    failure: Failure
    pattern: re.Pattern[str]
    by_phase: Mapping[str, Failure] = field(default_factory=dict)

    def means(self, phase: str) -> Failure:
        """The failure that this message means in a phase."""
        return self.by_phase.get(phase, self.failure)


def signature(
    id: str, kind: Kind, failure: Failure, pattern: str, by_phase: Mapping[str, Failure] = {}
) -> Signature:
    """A row with its pattern compiled."""
    return Signature(id, kind, failure, re.compile(pattern), by_phase)


def first(rows: Iterable[Signature], message: str) -> tuple[Signature, Mapping[str, str]] | None:
    """The first row that matches a message, and the captured values."""
    message = message[:MAX_LINE]
    for row in rows:
        match = row.pattern.search(message)
        if match:
            return row, {k: v for k, v in match.groupdict().items() if v is not None}
    return None
