"""Parts of explaining a whole log after the fact, the same for several engines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from caovand.core.healing.failure import Finding
from caovand.core.log import PhaseTime
from caovand.core.secrets import hide

HIDDEN = "(hidden)"
COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# What container tools and journald put before a line.
_WRAPPING = re.compile(
    r"\w{3} [ \d]\d \d\d:\d\d:\d\d \S{1,100} [\w@.:-]{1,100}\[\d+\]: |[\w.@-]{1,100} +\| "
    r"|\d{4}-\d\d-\d\d[T ][\d:.,+-]{5,30}Z? "
)


def unwrapped(text: str) -> list[str]:
    """The lines of a log file as the engine printed them, without colours."""
    return [_unwrapped(line) for line in re.split(r"\r?\n", COLOUR.sub("", text))]


def _unwrapped(line: str) -> str:
    wrapping = _WRAPPING.match(line)
    return line[wrapping.end() :] if wrapping else line


def public(finding: Finding, line: int) -> Finding:
    """The finding at this line of the file, without anything that looks like a secret."""
    return replace(
        finding,
        line=line,
        text=hide(finding.text, mark=HIDDEN),
        captures={name: hide(value, mark=HIDDEN) for name, value in finding.captures.items()},
    )


def durations(times: Mapping[str, Sequence[float]]) -> tuple[PhaseTime, ...]:
    """Each phase from its first mark to the next phase's."""
    names = list(times)
    found = []
    for place, name in enumerate(names):
        end = times[names[place + 1]][0] if place + 1 < len(names) else times[name][-1]
        found.append(PhaseTime(name, round(max(end - times[name][0], 0.0), 3)))
    return tuple(found)
