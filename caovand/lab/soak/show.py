"""Format the verdict of a soak, for people and as a document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from caovand.lab.core.soak.judged import Outcome, SoakCheck
from caovand.lab.core.soak.schedule import TaskKind
from caovand.lab.core.soak.seen import SoakRecord
from caovand.lab.core.soak.verdict import clock, has_passed
from caovand.lab.results import headline

MAX_ERRORS = 200
WORDS = {
    TaskKind.CHAT: "turns of conversations",
    TaskKind.SHORT: "short prompts",
    TaskKind.LONG: "long prompts",
    TaskKind.LEFT: "clients that disconnected",
    TaskKind.CONSTRAINED: "answers in JSON with a schema",
    TaskKind.KNOWN: "known prompts",
}
SHOWN = {
    Outcome.PASSED: "passed",
    Outcome.FAILED: "FAILED",
    Outcome.NOTED: "noted",
    Outcome.UNKNOWN: "not judged",
}


def document(seen: SoakRecord, checks: Sequence[SoakCheck]) -> dict[str, Any]:
    """All observations and conclusions as a document."""
    figures = asdict(seen)
    figures["compared"] = [
        comparison for comparison in figures["compared"] if comparison["difference"]
    ]
    figures["known_asked"] = len(seen.compared)
    figures["errors"] = figures["errors"][:MAX_ERRORS]
    figures["error_count"] = len(seen.errors)
    return {"passed": has_passed(checks), "checks": [asdict(check) for check in checks], **figures}


def lines(
    document: Mapping[str, Any], checks: Sequence[SoakCheck], seen: SoakRecord
) -> Iterator[str]:
    """Format the verdict."""
    yield headline(document)
    early = "" if document["complete"] else f" of {clock(document['hours'] * 3600)}"
    yield (
        f"{clock(seen.seconds)}{early}, {document['at_once']} at once, seed {document['seed']}:"
        f" {sum(seen.requests.values()):,} requests, {seen.tokens:,} tokens generated"
    )
    kinds = [
        f"{seen.requests[kind.value]:,} {WORDS[kind]}"
        for kind in TaskKind
        if kind.value in seen.requests
    ]
    if kinds:
        yield ", ".join(kinds)
    for check in checks:
        yield f"{SHOWN[check.outcome]:<10}  {check.name:<22}  {check.text}"
    failed = [check.name for check in checks if check.outcome is Outcome.FAILED]
    yield f"FAILED: {', '.join(failed)}" if failed else "passed"
