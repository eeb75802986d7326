"""Explain a finding of one engine to people, with the public reports that it resembles."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from caovand.core.engine.record import Engine
from caovand.core.healing.answer import FailureAnswer, answer
from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import REACTIONS, LadderRules
from caovand.core.healing.rung import Healing
from caovand.core.plan import Plan
from caovand.engines import registry
from caovand.engines.common.logs import refusals
from caovand.engines.common.logs.rows import clients, host, kernel, network

_SHARED_KINDS = {row.id: row.kind for row in (*kernel.ROWS, *host.ROWS, *network.ROWS)}
"""Kinds of the rows that no engine's own lines are needed for."""
_WHY_REFUSED = "the server refused a request, and the line says why"
_SERVES_ON = "the server serves on; only this request, or what it asks of the server, must change"
_CONTAINER_ROWS = "container."
_NOT_STARTED = "the container does not start until this is changed; waiting cannot help"
_CLIENT_MISTAKES = frozenset(row.id for row in clients.ROWS)
_CLIENT_FAILED = "a client failed, and no engine that caovan runs"
_ANSWERED = re.compile(
    r"Error code: 4\d\d\b|^\W{0,3}4\d\d[ :]|\b(?:HTTP|status code)\b.{0,12} 4\d\d\b"
)
"""The status of a refused request."""
_NO_RUNGS = Healing(rungs=(), cures={}, option=str)
REPORTS_FILE = "public_reports.list"
"""A line is a failure, a signature, an engine, and reports as repository#number;
`tests/public_reports.py --cite` writes it."""


def _read_reports() -> Mapping[tuple[str, str], Mapping[str, tuple[str, ...]]]:
    """Public reports by failure and signature, then by engine."""
    # importlib.resources would cost the daemon 3 MB.
    content = Path(__file__).with_name(REPORTS_FILE).read_text(encoding="utf-8")
    by_cause: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {}
    for line in content.splitlines():
        failure, signature, engine, *reports = line.split(" ")
        by_cause.setdefault((failure, signature), {})[engine] = tuple(reports)
    return by_cause


_REPORTS = _read_reports()  # at once: a machine without free descriptors can still answer


def answer_of(
    engine: Engine | None,
    finding: Finding,
    plan: Plan | None = None,
    rules: LadderRules | None = None,
) -> FailureAnswer:
    """The answer for an engine; None is for the kernel's log and for an uncertain writer.

    Without `rules` caovan does not run the engine: only its log is known.
    """
    kinds = {**_SHARED_KINDS, **(engine.log.kinds if engine else {})}
    ours = rules is not None
    rules = rules or LadderRules(engine.healing if engine else _NO_RUNGS)
    reports = similar_reports(engine.name if engine else "", finding)
    reply = answer(finding, kinds.get(finding.signature, ""), plan, rules, reports, ours=ours)
    own = [engine] if ours and engine else registry.engines()
    clients_rows = refusals.CLIENT_ROWS.union(*(e.log.own_rows.client for e in own))
    if not ours and finding.signature in clients_rows:
        reply = replace(reply, heals="no", how=_CLIENT_FAILED)
        asked = finding.signature in _CLIENT_MISTAKES
        return replace(reply, certainty="certain", why=_WHY_REFUSED) if asked else reply
    if reply.heals == "no" and _refuses_a_request(finding, plan, own):
        return replace(reply, certainty="certain", why=_WHY_REFUSED, how=_SERVES_ON)
    if not ours and any(finding.signature in e.log.own_rows.commands for e in own):
        return replace(reply, heals="no", how=_SERVES_ON)
    if not ours and finding.signature.startswith(_CONTAINER_ROWS) and reply.heals == "waits":
        return replace(reply, heals="no", how=_NOT_STARTED)
    if engine is None and reply.heals == "no" and REACTIONS[finding.failure].kind != "fatal":
        return replace(reply, heals="depends", how="the log does not show which engine it is")
    return reply


def _refuses_a_request(finding: Finding, plan: Plan | None, engines: Sequence[Engine]) -> bool:
    """Whether a server, which may be of any of these engines, refused one request, and serves
    others.

    An excerpt without the engine's start shows no phase: the text of a refusal suffices there.
    """
    if finding.failure != "bad-arguments":
        return False
    if refusals.REFUSED_REQUEST in finding.captures:
        return True
    if plan is None and _ANSWERED.search(finding.text):
        return True
    answered = finding.phase in refusals.SERVING_PHASES or "Error code: 4" in finding.text
    return (answered or plan is None) and is_refusal(finding, engines)


def is_refusal(finding: Finding, engines: Sequence[Engine]) -> bool:
    """Whether a row means a refused request to every server, or to one of these engines."""
    signature = finding.signature
    return signature in refusals.NAMES or any(
        signature in engine.log.own_rows.requests for engine in engines
    )


def similar_reports(engine: str, finding: Finding) -> tuple[str, ...]:
    """Public reports of the same message with the same meaning, those of the same engine first."""
    by_engine = _REPORTS.get((finding.failure, finding.signature), {})
    return by_engine.get(engine) or next(iter(by_engine.values()), ())
