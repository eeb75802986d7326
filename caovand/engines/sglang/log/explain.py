"""Explain a complete log of SGLang after the fact: phases, values, the failure, advice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from caovand.core.engine.log import Explanation
from caovand.core.healing.failure import Finding
from caovand.engines.common.logs.hit import line_finding
from caovand.engines.common.logs.whole_log import Explainer
from caovand.engines.sglang.healing.advice import advise
from caovand.engines.sglang.log.cause import find_cause
from caovand.engines.sglang.log.line import take_apart
from caovand.engines.sglang.log.phases import read
from caovand.engines.sglang.log.signatures import HARMLESS

_IGNORED = "Ignore import error when loading sglang."
_NO_ANSWER = re.compile(
    r"Health check failed\. Server couldn't get a response from detokenizer for last "
    r"(?P<seconds>\d{1,6}) seconds(?:.{0,80}last_heartbeat time: (?P<heartbeat>[\d:]{8}))?"
)
"""A scheduler that computes a long prompt, or hangs; the server may answer again later."""


def _find_cause(lines: Sequence[str], phase: str) -> Finding | None:
    """The cause of the end, else health checks that nothing answered."""
    if fatal := find_cause(lines, phase):
        return fatal
    for number, line in enumerate(lines, 1):
        if waited := _NO_ANSWER.match(take_apart(line).message):
            captures = {name: value for name, value in waited.groupdict().items() if value}
            return line_finding("hang", line, number, "serving", "sglang.health", captures)
    return None


_explain = Explainer(
    begins=lambda line: take_apart(line).message.startswith("server_args="),
    at_s=lambda line: take_apart(line).at_s,
    read=read,
    harmless=HARMLESS,
    find_cause=_find_cause,
    advise=advise,
)


def explain(text: str) -> Explanation:
    """Explain a log; code that could not be imported is not harmless if it is the cause."""
    explanation = _explain(text)
    finding = explanation.finding
    if finding is None or not ("ignored" in finding.captures or _IGNORED in finding.text):
        return explanation
    harmless = {row: count for row, count in explanation.harmless.items() if row != "sglang.import"}
    return replace(explanation, harmless=harmless)
