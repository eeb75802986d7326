"""What people and programs are shown of the daemon: one plain document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from caovand.core.failure import Finding
from caovand.core.ladder import is_degraded
from caovand.core.machine import Snapshot, State
from caovand.core.memory import MemoryEstimate
from caovand.core.observation import GpuSample
from caovand.core.plan import Plan
from caovand.core.report import beside

# Where nothing more happens without somebody acting, or all is well.
SETTLED = frozenset({State.SERVING, State.FAILED, State.HOLD, State.STOPPED})
WITHOUT_ENGINE = frozenset({State.STOPPED, State.BACKOFF, State.HOLD, State.FAILED})

BACK = "caovanctl retry --full tries the full plan once, caovanctl reset forgets the lowered one"


@dataclass(frozen=True)
class Facts:
    """What the supervisor knows beside the snapshot."""

    version: str
    pid: int
    mode: str
    mode_origin: str
    config_path: str
    engine_pid: int | None
    figures: Mapping[str, Any]
    progress: Mapping[str, Any]
    revision: int
    gpus: tuple[GpuSample, ...] = ()
    forecast: MemoryEstimate | None = None
    lowered_at: float | None = None
    """Since when the plan is a lowered one, Unix time."""
    engine_mode: str = ""
    """The mode that the engine was planned for; `mode --defer` leaves it behind."""
    failed: Mapping[str, int] = field(default_factory=dict)
    """How often each failure was seen since the daemon started."""
    warnings: tuple[str, ...] = ()
    """What the daemon itself lacks, such as room on a disk."""


def describe(snapshot: Snapshot, facts: Facts, now: float) -> dict[str, Any]:
    """The status document; ages are seconds before `now` (monotonic, like the snapshot's times)."""
    plan = snapshot.plan
    deadline = snapshot.deadline
    # While HOLD looks again, the deadline is that of the look.
    waits = snapshot.state in (State.BACKOFF, State.HOLD) and not snapshot.looking
    # An engine that could not be ended is still known; what it did last is of no interest.
    lives = snapshot.state not in WITHOUT_ENGINE
    return {
        "state": snapshot.state.value,
        "since_s": round(now - snapshot.since, 3),
        "settled": is_settled(snapshot),
        "reason": snapshot.reason,
        "phase": snapshot.phase,
        "progress": snapshot.progress,
        "detail": snapshot.detail,
        "retry_in_s": round(max(deadline - now, 0.0), 1)
        if waits and deadline is not None
        else None,
        "looking": snapshot.looking,
        "served": _served(plan) if snapshot.state is State.SERVING else None,
        "model": plan.model if plan else None,
        "mode": facts.mode,
        "mode_origin": facts.mode_origin,
        "engine_mode": facts.engine_mode,
        "mtp": plan.mtp if plan else None,
        "rungs": list(plan.rungs) if plan else [],
        "degraded": _degraded(plan, facts.lowered_at),
        "warnings": [*(plan.warnings if plan else ()), *facts.warnings],
        "restarts": max(snapshot.spawns - 1, 0),
        "failures": snapshot.failures,
        "last_failure": _finding(snapshot.finding),
        "last_failure_s": _age(snapshot.found_at, now),
        "remedy": snapshot.remedy.text if snapshot.remedy else None,
        "obstacles": list(snapshot.remedy.obstacles) if snapshot.remedy else [],
        "refusal": _finding(snapshot.refusal),
        "generation": snapshot.generation,
        "revision": facts.revision,
        "engine_pid": facts.engine_pid,
        "reported": dict(facts.figures),
        "forecast": beside(facts.forecast, facts.figures) if facts.forecast and lives else {},
        "activity": dict(facts.progress) if lives else {},
        "failed": dict(facts.failed),
        "gpus": [asdict(sample) for sample in facts.gpus],
        "daemon": {"version": facts.version, "pid": facts.pid, "config": facts.config_path},
    }


def _age(at: float | None, now: float) -> float | None:
    return None if at is None else round(now - at, 3)


def _degraded(plan: Plan | None, since: float | None) -> dict[str, Any] | None:
    """What the ladder changed and why, since when, and the way back; None for a full plan."""
    if plan is None or not is_degraded(plan):
        return None
    lowered = [
        setting.reason
        for setting in (*plan.settings.values(), *plan.env.values())
        if setting.origin in ("ladder", "remembered")
    ]
    return {
        "why": list(dict.fromkeys(lowered)),
        "since": since,
        "rungs": list(plan.rungs),
        "back": BACK,
    }


def is_settled(snapshot: Snapshot) -> bool:
    """Whether what was asked for has come out, well or badly."""
    return snapshot.state in SETTLED and not snapshot.replanning


def one_line(snapshot: Snapshot) -> str:
    """The state for `systemctl status` and the log."""
    if snapshot.state is State.STARTING:
        done = f" {snapshot.progress:.0%}" if snapshot.progress is not None else ""
        detail = f": {public_detail(snapshot.detail)}" if public_detail(snapshot.detail) else ""
        return f"STARTING, {snapshot.phase or 'launch'}{done}{detail}"
    if snapshot.state is State.SERVING and snapshot.plan:
        served = _served(snapshot.plan)
        rungs = ", ".join(snapshot.plan.rungs)
        lowered = f", degraded: {rungs}" if is_degraded(snapshot.plan) else ""
        return f"SERVING {served['name']} on {served['url']}, MTP {snapshot.plan.mtp}{lowered}"
    reason = snapshot.reason
    if snapshot.finding is not None:
        reason = reason.replace(snapshot.finding.text, snapshot.finding.public_text)
    return f"{snapshot.state.value}: {reason}" if reason else snapshot.state.value


def public(document: Mapping[str, Any]) -> dict[str, Any]:
    """The status document for the socket that is open to all: without words of the engine."""
    shown = {**document, "detail": public_detail(document["detail"])}
    for name in ("last_failure", "refusal"):
        found = shown[name]
        if found is None:
            continue
        text = Finding(**found).public_text
        shown[name] = {**found, "text": text, "captures": {}}
        shown["reason"] = shown["reason"].replace(found["text"], text)
        if text != found["text"]:
            # What follows from a finding is worded with what it read.
            shown.update(remedy=None, obstacles=[])
            if shown["degraded"] is not None:
                shown["degraded"] = {**shown["degraded"], "why": []}
    return shown


def public_detail(detail: str) -> str:
    """What of a phase anybody may read; words of the engine's log stand in quotes."""
    return "" if '"' in detail else detail


def _served(plan: Plan | None) -> dict[str, Any]:
    assert plan is not None
    host, port = plan.value("host") or "127.0.0.1", plan.value("port") or 8000
    scheme = "https" if plan.value("ssl_certfile") else "http"
    return {
        "name": served_name(plan),
        "host": host,
        "port": port,
        "url": f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/v1",
    }


def served_name(plan: Plan) -> str:
    """The name clients ask for, the first where there are several."""
    names = plan.value("served_model_name") or plan.model
    return str(names[0] if isinstance(names, list) else names)


def _finding(finding: Finding | None) -> dict[str, Any] | None:
    return None if finding is None else asdict(finding)
