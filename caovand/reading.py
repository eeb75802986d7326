"""Reads what an engine printed in a process of its own, and never waits long for it (blocking).

Clients choose what stands in a log: a text that keeps its reader busy must not keep the daemon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from caovand.adapters import confined
from caovand.core.failure import Finding

PROCESS = "caovand.reading_process"
CAUSE_S = 5.0
INCIDENT_S = 10.0


def find_cause(
    lines: Sequence[str], phase: str, *, alive: bool = False
) -> tuple[Finding | None, str]:
    """`cause.find_cause` of printed lines, and why nobody knows, where that is so."""
    request = {"task": "cause", "phase": phase, "alive": alive}
    answers, why = confined.ask(PROCESS, request, lines, CAUSE_S)
    if not answers:
        return None, why or "it answered nothing"
    return (Finding(**answers[0]) if answers[0] else None), ""


def clean_incident(
    draft: Mapping[str, Any], lines: Sequence[str], texts: Mapping[str, str], secrets: Sequence[str]
) -> tuple[dict[str, Any] | None, dict[str, str], str]:
    """An incident's report and files without secrets, and why some are missing.

    A log of the printed `lines` is among the files; what is missing was not cleaned in time.
    """
    request = {"task": "incident", "draft": draft, "texts": texts, "secrets": secrets}
    answers, why = confined.ask(PROCESS, request, lines, INCIDENT_S)
    report = answers[0] if answers else None
    return report, dict(answers[1:]), why
