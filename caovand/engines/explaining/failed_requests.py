"""Explain a request that failed by an exception, in the log of a server that goes on.

The server's framework catches it, answers with the status 500, and prints the traceback.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from caovand.core.engine.log import Explanation
from caovand.engines.common.logs.refusals import FAILED

_CAUGHT = re.compile(r".{0,120}\bException in ASGI application")
_RAISED = re.compile(r"(?:\w{1,60}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception)\b")
_SERVES_ON = "The exception ended one request, which was answered with the status 500."


def of_request(
    explanation: Explanation, lines: Sequence[str], explain: Callable[[str], Explanation]
) -> Explanation:
    """The explanation of the exception that ended a request, if a log shows nothing else."""
    caught = next((n for n, line in enumerate(lines) if _CAUGHT.match(line)), None)
    finding = explanation.finding
    if caught is None or (finding is not None and finding.line <= caught):
        return explanation
    raised = next((n for n in range(caught, len(lines)) if _RAISED.match(lines[n])), None)
    if raised is None or (finding is not None and finding.line != raised + 1):
        return explanation
    alone = explain("\n".join(lines[caught + 1 : raised + 1]))
    if alone.finding is None or alone.finding.failure == "unknown":
        return explanation
    shown = replace(alone.finding, phase="serving", signature=FAILED, line=raised + 1)
    return replace(explanation, finding=shown, advice=(_SERVES_ON, *alone.advice))
