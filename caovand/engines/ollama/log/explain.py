"""Explains a whole log of Ollama after the fact: phases, figures, the failure, advice."""

from __future__ import annotations

from caovand.core.log import Explanation
from caovand.engines.common.signature import first
from caovand.engines.common.whole_log import durations, lines_of, public
from caovand.engines.ollama.healing.advice import advise
from caovand.engines.ollama.log.cause import find_cause
from caovand.engines.ollama.log.line import take_apart
from caovand.engines.ollama.log.phases import Figure, read
from caovand.engines.ollama.log.signatures import HARMLESS

_BEGIN = "server config"
"""Of its first line; releases before 0.6.7 write that one in another form."""


def explain(text: str) -> Explanation:
    """Explain the text of a log file; one of several starts by its last one."""
    every = lines_of(text)
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
    finding = find_cause(lines, "resolve")
    if finding is not None:
        finding = public(finding, finding.line + begin)
    advice = advise(finding) if finding else ()
    shown = None if version is None else str(version)
    return Explanation(shown, durations(times), reached, finding, advice, figures, {}, harmless)


def _begins(line: str) -> bool:
    return _BEGIN in line[:100] and (line.startswith("time=") or " routes.go:" in line[:40])
