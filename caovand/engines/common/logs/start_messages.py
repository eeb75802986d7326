"""The messages of an engine's start: a table, in which each message has a phase and figures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caovand.core.health.observation import LogMark
from caovand.engines.common.logs.figures import Figure, parse_figure
from caovand.engines.common.logs.signature import MAX_LINE


@dataclass(frozen=True)
class StartMessage:
    """A message that begins with `pattern`: its phase, a detail for people, figures by group name.

    A message without a phase has figures alone. At the `end` of a phase its work is complete.
    """

    pattern: re.Pattern[str]
    phase: str | None
    detail: str
    figures: re.Pattern[str]
    end: bool

    @property
    def mark(self) -> LogMark | None:
        """The start mark of this message; None without a phase."""
        if self.phase is None:
            return None
        return LogMark(self.phase, self.detail, progress=1.0 if self.end else None)

    def captures(self, text: str) -> Mapping[str, str]:
        """The values in a line of this message, as they are printed, by group name."""
        match = self.figures.search(text[:MAX_LINE])
        named = match.groupdict() if match else {}
        return {name: value for name, value in named.items() if value is not None}


def start_message(
    pattern: str, phase: str | None, detail: str = "", figures: str = "", *, end: bool = False
) -> StartMessage:
    """A row; its figures are searched in the whole line, by default with `pattern` itself."""
    return StartMessage(re.compile(pattern), phase, detail, re.compile(figures or pattern), end)


def find_row(rows: Sequence[StartMessage], message: str) -> StartMessage | None:
    """The first row that a message begins with; None if it belongs to no start."""
    message = message[:MAX_LINE]
    return next((row for row in rows if row.pattern.match(message)), None)


def parse_figures(captures: Mapping[str, str]) -> dict[str, Figure]:
    """The figures that captured values are."""
    return {name: parse_figure(value) for name, value in captures.items()}
