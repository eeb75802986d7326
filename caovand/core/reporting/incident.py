"""An incident: the evidence of a failure, kept for later questions, without secrets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from caovand.core.facts.inventory import Inventory
from caovand.core.healing.answer import FailureAnswer
from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import Decision
from caovand.core.health.observation import GpuSample
from caovand.core.lifecycle.state import Snapshot
from caovand.core.plan import Plan
from caovand.core.secrets import hide_in

BEFORE, AFTER = 20, 10  # lines of context around the causing line
MAX_TEXT = 2000
LIVE_FAILURES = frozenset({"hang", "start-stall"})
"""Failures that only the live engine can explain, by showing what it waits for."""

_BULKY = frozenset(
    {"flags", "deprecated", "choices", "tool_parsers", "reasoning_parsers", "weights"}
    | {"chat_template", "layer_types"}
)
"""Too long for a report, and identical in every incident of an engine or a model."""


@dataclass(frozen=True)
class FailureContext:
    """Everything known when an engine failed; `lines` is its output."""

    finding: Finding
    lines: Sequence[str]
    status: Mapping[str, Any]
    plan: Plan | None = None
    decision: Decision | None = None
    answer: FailureAnswer | None = None
    inventory: Inventory | None = None
    argv: Sequence[str] = ()
    extra_args: Sequence[str] = ()
    """The plan's arguments, without secrets."""
    samples: Sequence[GpuSample] = ()
    kernel: Sequence[str] = ()
    metrics: str = ""
    secrets: Sequence[str] = field(default=())
    live: bool = False
    """Whether the live engine explains the failure, as for LIVE_FAILURES."""
    nodes: Mapping[str, int] = field(default_factory=dict)
    """The other nodes that ran one of its ranks, with that rank."""


def draft(
    case: FailureContext,
    *,
    at: str,
    processes: Sequence[Mapping[str, Any]],
    host: Mapping[str, Any],
) -> dict[str, Any]:
    """`incident.json` before redaction and without `cause`; `at` is wall-clock time for people."""
    return {
        "at": at,
        "failure": case.finding.failure,
        "finding": asdict(case.finding),
        "cause": None,
        "decision": _decision(case.decision),
        "answer": asdict(case.answer) if case.answer else None,
        "plan": _plan(case.plan, case.extra_args),
        "argv": list(case.argv),
        "inventory": _inventory(case.inventory) if case.inventory else None,
        "gpu_samples": [asdict(sample) for sample in case.samples],
        "host": dict(host),
        "processes": [dict(process) for process in processes],
        "requests": [],
        "nodes": [
            {"name": name, "rank": rank, "file": node_file(rank)}
            for name, rank in case.nodes.items()
        ],
        "status": dict(case.status),
    }


def document(draft: Mapping[str, Any], lines: Sequence[str], secrets: Iterable[str]) -> Any:
    """`incident.json` as stored: with the causing line from `lines`, and without secrets."""
    full = {**draft, "cause": causing_lines(lines, draft["finding"]["line"])}
    return hide_in(full, secrets, max_length=MAX_TEXT)


def without_texts(case: FailureContext, *, at: str, why: str) -> dict[str, Any]:
    """The incident to store if redaction failed: without any text from outside."""
    finding, decision = case.finding, case.decision
    bare = FailureContext(
        replace(finding, text=f"({why})", captures={}), (), {},
        samples=case.samples, nodes=case.nodes,
    )  # fmt: skip
    if decision is not None:
        bare = replace(bare, decision=Decision(decision.verdict, rung=decision.rung))
    return draft(bare, at=at, processes=(), host={})


def node_file(rank: int) -> str:
    """Name of the file with the evidence of this rank's node, which arrives after the rest."""
    return f"node-{rank}.json"


def dedup_mark(snapshot: Snapshot) -> str:
    """Equal for failures for which another incident would add nothing; "" for all others.

    A failure that only requires waiting recurs; its incidents would displace the first one and
    those of other failures.
    """
    finding, plan, remedy = snapshot.finding, snapshot.plan, snapshot.remedy
    if finding is None or plan is None or remedy is None or snapshot.failures < 1:
        return ""
    parts = (finding.failure, finding.signature, finding.phase, remedy.verdict, plan.identity)
    return " ".join(parts) if remedy.verdict == "hold" or remedy.excused else ""


def causing_lines(lines: Sequence[str], number: int) -> dict[str, Any] | None:
    """The causing line, number `number`, and the lines around it; None if there is no such line."""
    at = number - 1
    if not 0 <= at < len(lines):
        return None
    return {
        "line": lines[at],
        "before": list(lines[max(at - BEFORE, 0) : at]),
        "after": list(lines[at + 1 : at + 1 + AFTER]),
    }


def _plan(plan: Plan | None, extra_args: Sequence[str]) -> dict[str, Any] | None:
    if plan is None:
        return None
    encoded = asdict(replace(plan, caveats=()))
    encoded["warnings"] = list(plan.warnings)
    del encoded["caveats"]
    encoded["verbatim"] = sorted(plan.verbatim)
    del encoded["taken"]
    encoded["rungs"] = list(plan.rungs)
    encoded["extra_args"] = list(extra_args)
    return encoded


def _decision(decision: Decision | None) -> dict[str, Any] | None:
    if decision is None:
        return None
    return {
        "verdict": decision.verdict,
        "rung": decision.rung,
        "text": decision.text,
        "obstacles": list(decision.obstacles),
    }


def _inventory(inventory: Inventory) -> dict[str, Any]:
    encoded: dict[str, Any] = _without_bulk(asdict(inventory))
    encoded["model"]["notes"] = list(map(str, inventory.model.notes))
    return encoded


def _without_bulk(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_bulk(entry) for name, entry in value.items() if name not in _BULKY}
    if isinstance(value, (list, tuple)):
        return [_without_bulk(entry) for entry in value]
    return value
