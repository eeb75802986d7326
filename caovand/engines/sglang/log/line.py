"""Split a line of SGLang into time, rank and message.

Its processes write `[2025-03-29 18:18:34 TP0] text`, without a level; tracebacks and libraries have
no prefix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PREFIX = re.compile(
    r"\[?(?:(?:\d{4}-)?\d\d-(?P<day>\d\d) )?(?P<hour>\d\d):(?P<minute>\d\d):"
    r"(?P<second>\d\d(?:\.\d{1,6})?)"
    r"(?P<ranks>(?: [A-Z]{2,6}\d{1,5}){0,8})\] "
)


@dataclass(frozen=True)
class SglangLine:
    """A line's parts. `at_s` are seconds since the month began, None for a line without prefix."""

    at_s: float | None
    ranks: str
    message: str


def take_apart(line: str) -> SglangLine:
    """The parts of one line, without colours and newlines."""
    prefix = _PREFIX.match(line)
    if prefix is None:
        return SglangLine(None, "", line)
    day, hour, minute = (int(prefix[name] or 0) for name in ("day", "hour", "minute"))
    at_s = ((day * 24 + hour) * 60 + minute) * 60 + float(prefix["second"])
    return SglangLine(at_s, prefix["ranks"].strip(), line[prefix.end() :])
