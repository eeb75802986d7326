"""An incident: what is kept of a failure, for whoever asks later why. Nothing secret is in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from caovand.core import flags
from caovand.core.failure import Finding
from caovand.core.flags import SECRET_NAME, is_secret_entry
from caovand.core.inventory import Inventory
from caovand.core.ladder import Decision
from caovand.core.machine import Snapshot
from caovand.core.observation import GpuSample
from caovand.core.plan import Plan

BEFORE, AFTER = 20, 10  # lines of context around the causing one
LONGEST_TEXT = 2000
HIDDEN = "[secret]"
# What only a look at the living engine tells: why it waits.
LIVE = frozenset({"hang", "start-stall"})

_SECRET_TEXT = re.compile(
    r"\b(hf_|sk-|gh[pousr]_)[A-Za-z0-9_-]{12,}"
    r"|(?i:(authorization: *|bearer +))[^\s'\",]{8,}"
    r"|(\w+://[^\s/:@]{0,64}:)[^\s/@]{1,200}(?=@)"
)
# `"redis_password": "..."` in a flag's JSON or in Python's words for it, quotes escaped or not.
_ENTRY = re.compile(
    r"""(?P<q>\\*["'])(?P<name>[\w.-]{1,100})(?P=q)(?P<between>\s*:\s*)"""
    r"""(?:(?P<v>\\*["'])(?:(?!(?P=v))(?:\\.|.)){1,4000}(?P=v)|(?P<number>-?\d[\d.eE+-]{0,60}))"""
)
# Too long for a report, and the same for every incident of an engine or a model.
_BULKY = frozenset(
    {"flags", "deprecated", "choices", "tool_parsers", "reasoning_parsers", "weights"}
    | {"chat_template", "layer_types"}
)


@dataclass(frozen=True)
class Case:
    """Everything at hand when an engine failed; `lines` are those of the failed engine."""

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


def document(
    case: Case, *, at: str, processes: Sequence[Mapping[str, Any]], host: Mapping[str, Any]
) -> dict[str, Any]:
    """`incident.json`; `at` is wall-clock time for people."""
    told: dict[str, Any] = {
        "at": at,
        "failure": case.finding.failure,
        "finding": asdict(case.finding),
        "cause": cause(case.lines, case.finding),
        "decision": _decision(case.decision),
        "plan": _plan(case.plan),
        "argv": list(case.argv),
        "inventory": _without_bulk(asdict(case.inventory)) if case.inventory else None,
        "gpu_samples": [asdict(sample) for sample in case.samples],
        "host": dict(host),
        "processes": [dict(process) for process in processes],
        "status": dict(case.status),
    }
    cleaned = clean(told, case.secrets)
    assert isinstance(cleaned, dict)
    return cleaned


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


def cause(lines: Sequence[str], finding: Finding) -> dict[str, Any] | None:
    """The causing line with what stands around it, None where no line told."""
    at = finding.line - 1
    if not 0 <= at < len(lines):
        return None
    return {
        "line": lines[at],
        "before": list(lines[max(at - BEFORE, 0) : at]),
        "after": list(lines[at + 1 : at + 1 + AFTER]),
    }


def secrets_of(env: Mapping[str, str]) -> tuple[str, ...]:
    """The values of variables whose names say that they are secret."""
    return tuple(
        value for name, value in env.items() if SECRET_NAME.search(name) and len(value) >= 6
    )


def clean(value: Any, secrets: Iterable[str]) -> Any:
    """Plain data without secrets, long texts cut."""
    hidden = tuple(secret for secret in secrets if secret)
    if isinstance(value, str):
        text = clean_text(value, hidden)
        return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "..."
    if isinstance(value, Mapping):
        return {
            str(name): HIDDEN if is_secret_entry(str(name), entry) else clean(entry, hidden)
            for name, entry in value.items()
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        return [clean(entry, hidden) for entry in value]
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)


def clean_text(text: str, secrets: Iterable[str]) -> str:
    """Text without these secrets, and without what looks like one."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, HIDDEN)
    text = _ENTRY.sub(_entry, text)
    return _SECRET_TEXT.sub(lambda m: f"{m[1] or m[2] or m[3]}{HIDDEN}", text)


def _entry(found: re.Match[str]) -> str:
    if not is_secret_entry(found["name"], 1 if found["number"] else "text"):
        return found[0]
    q, v = found["q"], found["v"] or ""
    return f"{q}{found['name']}{q}{found['between']}{v}{HIDDEN}{v}"


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
