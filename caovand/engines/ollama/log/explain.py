"""Explains a whole log of Ollama after the fact: phases, figures, the failure, advice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from caovand.core.healing.failure import Finding
from caovand.core.log import Explanation, PhaseTime
from caovand.core.secrets import hide
from caovand.engines.common.signature import first
from caovand.engines.ollama.healing.advice import advise
from caovand.engines.ollama.log.cause import find_cause
from caovand.engines.ollama.log.line import take_apart
from caovand.engines.ollama.log.phases import Figure, read
from caovand.engines.ollama.log.signatures import HARMLESS

HIDDEN = "(hidden)"
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# What container tools and journald put before a line.
_WRAPPING = re.compile(
    r"\w{3} [ \d]\d \d\d:\d\d:\d\d \S{1,100} [\w@.:-]{1,100}\[\d+\]: |[\w.@-]{1,100} +\| "
    r"|\d{4}-\d\d-\d\d[T ][\d:.,+-]{5,30}Z? "
)
_BEGIN = "server config"
"""Of its first line; releases before 0.6.7 write that one in another form."""


def explain(text: str) -> Explanation:
    """Explain the text of a log file; one of several starts by its last one."""
    every = [_unwrap(line) for line in re.split(r"\r?\n", _COLOUR.sub("", text))]
    begin = max((n for n, line in enumerate(every) if _begins(line)), default=0)
    lines = every[begin:]
    figures: dict[str, Figure] = {}
    harmless: dict[str, int] = {}
    times: dict[str, list[float]] = {}
    reached = "resolve"
    for line in lines:
        parts = take_apart(line)
        mark, told = read(line)
        for name, value in told.items():
            figures.setdefault(name, value)
        if row := first(HARMLESS, line):
            harmless[row[0].id] = harmless.get(row[0].id, 0) + 1
        if mark is not None and mark.phase is not None and reached != "serving":
            reached = "serving" if mark.phase == "load" and mark.progress == 1.0 else mark.phase
            if parts.at_s is not None:
                times.setdefault(mark.phase, []).append(parts.at_s)
    version = figures.pop("version", None)
    finding = _finding(lines, begin)
    advice = advise(finding) if finding else ()
    shown = None if version is None else str(version)
    return Explanation(shown, _times(times), reached, finding, advice, figures, {}, harmless)


def _begins(line: str) -> bool:
    return _BEGIN in line[:100] and (line.startswith("time=") or " routes.go:" in line[:40])


def _finding(lines: Sequence[str], begin: int) -> Finding | None:
    finding = find_cause(lines, "resolve")
    if finding is None:
        return None
    return replace(
        finding,
        line=finding.line + begin,
        text=hide(finding.text, mark=HIDDEN),
        captures={name: hide(value, mark=HIDDEN) for name, value in finding.captures.items()},
    )


def _times(times: dict[str, list[float]]) -> tuple[PhaseTime, ...]:
    """Each phase from its first mark to the next phase's."""
    names = list(times)
    found = []
    for place, name in enumerate(names):
        end = times[names[place + 1]][0] if place + 1 < len(names) else times[name][-1]
        found.append(PhaseTime(name, round(max(end - times[name][0], 0.0), 3)))
    return tuple(found)


def _unwrap(line: str) -> str:
    wrapping = _WRAPPING.match(line)
    return line[wrapping.end() :] if wrapping else line
