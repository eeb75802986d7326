"""An incident: what is kept of a failure, for whoever asks later why. Nothing secret is in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from caovand.core import flags
from caovand.core.failure import Finding
from caovand.core.inventory import Inventory
from caovand.core.ladder import Decision
from caovand.core.machine import Snapshot
from caovand.core.observation import GpuSample
from caovand.core.plan import Plan
from caovand.core.secrets import hide_in

BEFORE, AFTER = 20, 10  # lines of context around the causing one
LONGEST_TEXT = 2000
# What only a look at the living engine tells: why it waits.
LIVE = frozenset({"hang", "start-stall"})

# Too long for a report, and the same for every incident of an engine or a model.
_BULKY = frozenset(
    {"flags", "deprecated", "choices", "tool_parsers", "reasoning_parsers", "weights"}
    | {"chat_template", "layer_types"}
)


@dataclass(frozen=True)
class Case:
    """Everything at hand when an engine failed; `lines` are what the failed engine printed."""

    finding: Finding
    lines: Sequence[str]
    status: Mapping[str, Any]
    plan: Plan | None = None
    decision: Decision | None = None
    inventory: Inventory | None = None
    argv: Sequence[str] = ()
    samples: Sequence[GpuSample] = ()
    kernel: Sequence[str] = ()
    metrics: str = ""
    secrets: Sequence[str] = field(default=())


def draft(
    case: Case, *, at: str, processes: Sequence[Mapping[str, Any]], host: Mapping[str, Any]
) -> dict[str, Any]:
    """`incident.json` but for its `cause`, secrets and all; `at` is wall-clock time for people."""
    return {
        "at": at,
        "failure": case.finding.failure,
        "finding": asdict(case.finding),
        "cause": None,
        "decision": _decision(case.decision),
        "plan": _plan(case.plan),
        "argv": list(case.argv),
        "inventory": _without_bulk(asdict(case.inventory)) if case.inventory else None,
        "gpu_samples": [asdict(sample) for sample in case.samples],
        "host": dict(host),
        "processes": [dict(process) for process in processes],
        "status": dict(case.status),
    }


def document(draft: Mapping[str, Any], lines: Sequence[str], secrets: Iterable[str]) -> Any:
    """`incident.json` as it is kept: with the causing one of `lines`, without secrets."""
    told = {**draft, "cause": cause(lines, draft["finding"]["line"])}
    return hide_in(told, secrets, longest=LONGEST_TEXT)


def without_texts(case: Case, *, at: str, why: str) -> dict[str, Any]:
    """What is kept where the rest could not be freed of secrets: nothing that somebody wrote."""
    finding, decision = case.finding, case.decision
    bare = Case(replace(finding, text=f"({why})", captures={}), (), {}, samples=case.samples)
    if decision is not None:
        bare = replace(bare, decision=Decision(decision.verdict, rung=decision.rung))
    return draft(bare, at=at, processes=(), host={})


def mark(snapshot: Snapshot) -> str:
    """The same for failures of which another incident would tell nothing new.

    A failure that is only waited out comes again and again; its incidents would push out the
    first, and those of other failures.
    """
    finding, plan, remedy = snapshot.finding, snapshot.plan, snapshot.remedy
    if finding is None or plan is None or remedy is None or snapshot.failures < 1:
        return ""
    told = (finding.failure, finding.signature, finding.phase, remedy.verdict, plan.identity)
    return " ".join(told) if remedy.verdict == "hold" or remedy.spared else ""


def cause(lines: Sequence[str], number: int) -> dict[str, Any] | None:
    """Line `number`, the causing one, with what stands around it; None where there is none."""
    at = number - 1
    if not 0 <= at < len(lines):
        return None
    return {
        "line": lines[at],
        "before": list(lines[max(at - BEFORE, 0) : at]),
        "after": list(lines[at + 1 : at + 1 + AFTER]),
    }


def _plan(plan: Plan | None) -> dict[str, Any] | None:
    if plan is None:
        return None
    told = asdict(plan)
    told["verbatim"] = sorted(plan.verbatim)
    told["extra_args"] = list(flags.redact(plan.extra_args))
    return told


def _decision(decision: Decision | None) -> dict[str, Any] | None:
    if decision is None:
        return None
    return {
        "verdict": decision.verdict,
        "rung": decision.rung,
        "text": decision.text,
        "obstacles": list(decision.obstacles),
    }


def _without_bulk(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_bulk(entry) for name, entry in value.items() if name not in _BULKY}
    if isinstance(value, (list, tuple)):
        return [_without_bulk(entry) for entry in value]
    return value
