"""Explain a server whose last answers are errors, by the status in its lines about requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from caovand.core.engine.log import Explanation
from caovand.core.healing.failure import Failure, Finding
from caovand.engines.common.logs.hit import MAX_TEXT, line_finding
from caovand.engines.common.logs.refusals import ANSWERED, NO_KEY

_ROUTE = (
    r"(?P<route>/[\w./-]{0,80}?(?:completions|embeddings|messages|responses|models|chat|generate"
    r"|embed|rerank|score|tokenize|transcriptions))"
)
_ACCESS = re.compile(
    rf"(?:.{{0,120}} )?\"(?:GET|POST) {_ROUTE}(?:[/?][^\" ]{{0,200}})? HTTP/[\d.]{{1,3}}\" "
    r"(?P<status>\d{3})\b"
)
_GIN = re.compile(
    rf"(?:.{{0,60}} )?\[GIN\] .{{0,40}}?\| (?P<status>\d{{3}}) \|.{{0,100}}?\b(?:GET|POST) +"
    rf"\"{_ROUTE}"
)
"""A server's line about a request to a route of a model (uvicorn, Ollama's GIN)."""
_LAST = 3
"""Answers at the end of a log that must all be errors: before, one was corrected."""


def of_answers(
    explanation: Explanation, lines: Sequence[str], advise: Callable[[Finding], tuple[str, ...]]
) -> Explanation:
    """The explanation of a log that shows no failure, if a server's last answers are errors."""
    if explanation.finding is not None or explanation.reached != "serving":
        return explanation
    answers = [
        (number, found)
        for number, line in enumerate(lines, 1)
        if (found := _ACCESS.match(line[:MAX_TEXT]) or _GIN.match(line[:MAX_TEXT]))
    ][-_LAST:]
    if not answers or any(found["status"] < "400" for _, found in answers):
        return explanation
    number, found = answers[-1]
    line, status = lines[number - 1], found["status"]
    if status == "401":
        finding = line_finding("access-denied", line, number, "serving", NO_KEY)
    else:
        failure: Failure = "unknown" if status >= "500" else "bad-arguments"
        finding = _answered(failure, line, number, status, found["route"])
    return replace(explanation, finding=finding, advice=advise(finding))


def _answered(failure: Failure, line: str, number: int, status: str, route: str) -> Finding:
    if status == "404":
        known = {"absent": route}
    elif status >= "500":
        known = {"broken": status}
    else:
        known = {"forbidden" if status == "403" else "refused": status}
    return line_finding(failure, line, number, "serving", ANSWERED, known)
