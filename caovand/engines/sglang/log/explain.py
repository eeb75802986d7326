"""Explains a whole log of SGLang after the fact: phases, figures, the failure, advice."""

from __future__ import annotations

from caovand.core.log import Explanation
from caovand.engines.common.signature import first
from caovand.engines.common.whole_log import durations, lines_of, public
from caovand.engines.sglang.healing.advice import advise
from caovand.engines.sglang.log.cause import find_cause
from caovand.engines.sglang.log.line import take_apart
from caovand.engines.sglang.log.phases import Figure, read
from caovand.engines.sglang.log.signatures import HARMLESS

_BEGIN = "server_args="


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
            reached = "serving" if mark.progress == 1.0 else mark.phase
            if parts.at_s is not None:
                times.setdefault(mark.phase, []).append(parts.at_s)
    finding = find_cause(lines, "resolve")
    if finding is not None:
        finding = public(finding, finding.line + begin)
    advice = advise(finding) if finding else ()
    return Explanation(None, durations(times), reached, finding, advice, figures, {}, harmless)


def _begins(line: str) -> bool:
    return take_apart(line).message.startswith(_BEGIN)
