"""Parse an engine's output in a separate process, with a time limit (blocking).

Clients control what logs contain: a text that keeps its parser busy must not block the daemon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from caovand.adapters.confinement import parser_process
from caovand.core.engine.log import Log
from caovand.core.healing.failure import Finding

PROCESS = "caovand.daemon.engine.reading_process"
CAUSE_S = 5.0  # of CPU time, so that a busy machine does not matter
STARVED_S = 30.0
INCIDENT_S = 10.0


def find_cause(
    log: Log, lines: Sequence[str], phase: str, *, alive: bool = False
) -> tuple[Finding | None, str]:
    """The result of `log.find_cause` on printed lines; and, if it failed, the reason."""
    request = {"task": "cause", "log": log.module, "phase": phase, "alive": alive}
    answers, reason = parser_process.ask(PROCESS, request, lines, STARVED_S, CAUSE_S, (log.module,))
    if not answers:
        return None, reason or "the engine did not answer"
    return (Finding(**answers[0]) if answers[0] else None), ""


def clean_incident(
    log: Log,
    draft: Mapping[str, Any],
    lines: Sequence[str],
    texts: Mapping[str, str],
    secrets: Sequence[str],
) -> tuple[dict[str, Any] | None, dict[str, str], str]:
    """An incident's report and files without secrets, and why some are missing.

    The files include a log of the printed `lines`; missing files could not be redacted in time.
    """
    request = {
        "task": "incident",
        "log": log.module,
        "draft": draft,
        "texts": texts,
        "secrets": secrets,
    }
    answers, reason = parser_process.ask(PROCESS, request, lines, INCIDENT_S, needs=(log.module,))
    report = answers[0] if answers else None
    return report, dict(answers[1:]), reason
