"""Explains a whole log of llama-server after the fact: phases, figures, the failure, advice."""

from __future__ import annotations

import re
from statistics import median

from caovand.core.log import Explanation
from caovand.engines.common.signature import first
from caovand.engines.common.whole_log import durations, lines_of, public
from caovand.engines.llamacpp.healing.advice import advise
from caovand.engines.llamacpp.log.cause import find_cause
from caovand.engines.llamacpp.log.line import take_apart
from caovand.engines.llamacpp.log.phases import Figure, read
from caovand.engines.llamacpp.log.signatures import HARMLESS

_BEGIN = re.compile(r"llama_server: initializing|main: (?:starting|build)")
_SPEED = re.compile(
    r" *(?P<what>prompt eval|eval) time = .{0,60}\( *[\d.]+ ms per token, +(?P<rate>[\d.]+) tokens"
)
_RATES = {"prompt eval": "prompt_tps", "eval": "generation_tps"}


def explain(text: str) -> Explanation:
    """Explain the text of a log file; one of several starts by its last one."""
    every = lines_of(text)
    begin = max((n for n, line in enumerate(every) if _BEGIN.search(line[:200])), default=0)
    # A refused option is reported before anything else is printed.
    lines = every[begin:]
    figures: dict[str, Figure] = {}
    rates: dict[str, list[float]] = {}
    harmless: dict[str, int] = {}
    reached = "resolve"
    times: dict[str, list[float]] = {}
    for line in lines:
        parts = take_apart(line)
        mark, told = read(line)
        for name, value in told.items():
            figures.setdefault(name, value)
        if speed := _SPEED.match(parts.message[:300]):
            rates.setdefault(_RATES[speed["what"]], []).append(float(speed["rate"]))
        if row := first(HARMLESS, parts.message):
            harmless[row[0].id] = harmless.get(row[0].id, 0) + 1
        if mark is not None and mark.phase is not None and reached != "serving":
            reached = "serving" if mark.progress == 1.0 else mark.phase
            if parts.at_s is not None:
                times.setdefault(mark.phase, []).append(parts.at_s)
    figures.update({name: round(median(found), 2) for name, found in rates.items()})
    finding = find_cause(lines, "resolve")
    if finding is not None:
        finding = public(finding, finding.line + begin)
    advice = advise(finding) if finding else ()
    return Explanation(None, durations(times), reached, finding, advice, figures, {}, harmless)
