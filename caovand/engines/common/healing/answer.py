"""The answer to a finding of one engine, with the public reports that it resembles."""

from __future__ import annotations

from dataclasses import replace

from caovand.core.engine.record import Engine
from caovand.core.healing import answer as answers
from caovand.core.healing.answer import Answer
from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import REACTIONS, LadderRules
from caovand.core.healing.rung import Healing
from caovand.core.plan import Plan
from caovand.engines.common.healing.public_reports import REPORTS
from caovand.engines.common.logs import refusals
from caovand.engines.common.logs.rows.kernel import ROWS

_OF_KERNEL = {row.id: row.kind for row in ROWS}
_WHY_REFUSED = "the server refused a request, and the line says why"
_SERVES_ON = "the server serves on; only this request, or what it asks of the server, must change"
_NOBODYS = Healing(rungs=(), cures={}, option=str)


def answer_of(
    engine: Engine | None,
    finding: Finding,
    plan: Plan | None = None,
    rules: LadderRules | None = None,
) -> Answer:
    """The answer for an engine; None is for the kernel's log and for an uncertain writer."""
    kinds = {**_OF_KERNEL, **(engine.log.kinds if engine else {})}
    rules = rules or LadderRules(engine.healing if engine else _NOBODYS)
    reports = similar_reports(engine.name if engine else "", finding)
    kind = kinds.get(finding.signature, "")
    found = answers.answer(finding, kind, plan, rules, reports)
    if found.heals == "no" and _refuses_a_request(finding):
        return replace(found, certainty="certain", why=_WHY_REFUSED, how=_SERVES_ON)
    if engine is None and found.heals == "no" and REACTIONS[finding.failure].kind != "fatal":
        return replace(found, heals="depends", how="the log does not show which engine it is")
    return found


def _refuses_a_request(finding: Finding) -> bool:
    """Whether a server refused one request, and serves others."""
    answered = finding.phase in ("serving", "http") or "Error code: 4" in finding.text
    return answered and finding.signature in refusals.NAMES and finding.failure == "bad-arguments"


def similar_reports(engine: str, finding: Finding) -> tuple[str, ...]:
    """Public reports of the same message with the same meaning, those of the same engine first."""
    found = REPORTS.get((finding.failure, finding.signature), {})
    return tuple(found.get(engine) or next(iter(found.values()), ()))
