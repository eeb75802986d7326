"""The daemon's status as a plain document and as one line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from caovand.core.addresses import join_address
from caovand.core.engine.log import Phase
from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.healing.failure import Finding
from caovand.core.health.observation import GpuSample
from caovand.core.lifecycle.state import Snapshot, State
from caovand.core.plan import Plan
from caovand.core.reporting.report import compare, forecast_figures

SETTLED = frozenset({State.SERVING, State.FAILED, State.HOLD, State.STOPPED})
"""States that need no waiting: serving, or lasting until someone acts."""
WITHOUT_ENGINE = frozenset({State.STOPPED, State.BACKOFF, State.HOLD, State.FAILED})

WAY_BACK = (
    "`caovanctl retry --full` tries the full plan once; `caovanctl reset` discards the degraded"
    " plan"
)
UNUSED = "caovan's kernels are not used"
OWN_PHASES = (
    Phase("plan", "plan", "plan"),
    Phase("launch", "launch", "launch"),
    Phase("proof", "test completion", "prove"),
)
"""Phases of a start in which the daemon acts and the engine prints nothing."""
DAEMON_FIELDS = frozenset({"gpus", "daemon"})
WORST_FIRST = (
    State.FAILED, State.HOLD, State.BACKOFF, State.RECYCLING, State.STARTING, State.STOPPING,
    State.STOPPED, State.SERVING,
)  # fmt: skip


@dataclass(frozen=True)
class DaemonFacts:
    """The daemon itself; `cache` is the folder of its caches."""

    version: str
    pid: int
    config: str
    cache: str = ""
    engine_user: str = ""
    """The engines' user if it is not the daemon's; otherwise `own_user` says why not."""
    own_user: str = ""


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """The engine of the last start, whose process is `pid`."""

    pid: int | None = None
    reported: Mapping[str, Any] = field(default_factory=dict)
    """Figures from the engine's log."""
    forecast: MemoryEstimate | None = None
    mode: str = ""
    """The mode of the engine's plan; differs from the slot's after `mode --defer`."""
    log_bytes_lost: int = 0
    """Bytes of engine output missing in engine.log, because its disk was full or too slow."""
    phases: tuple[Phase, ...] = ()
    """Phases of the engine's start."""
    unrecorded: str = ""
    """Why the next daemon might not find the engine; "" if it will."""


@dataclass(frozen=True, kw_only=True)
class SlotFacts:
    """The supervisor's knowledge in addition to the snapshot."""

    daemon: DaemonFacts
    engine: EngineFacts
    mode: str
    mode_origin: str
    figures: Mapping[str, Any]
    """The engine's metrics, from `figures.track`."""
    revision: int
    gpus: tuple[GpuSample, ...] = ()
    degraded_since: float | None = None
    """Unix time at which the plan was degraded."""
    failed: Mapping[str, int] = field(default_factory=dict)
    """Number of failures by id since the daemon started."""
    start: Mapping[str, Any] | None = None
    """Durations of the last start and the one before: `starts.describe`."""
    warnings: tuple[str, ...] = ()
    """Shortages of the daemon itself, such as disk space."""


def describe(snapshot: Snapshot, facts: SlotFacts, now: float) -> dict[str, Any]:
    """The status document; ages are seconds before `now` (monotonic, like the snapshot's times)."""
    plan, engine, deadline = snapshot.plan, facts.engine, snapshot.deadline
    # While HOLD checks again, the deadline is the check's.
    waits = snapshot.state in (State.BACKOFF, State.HOLD) and not snapshot.rechecking
    # An engine that could not be stopped is still known, but its last metrics are irrelevant.
    lives = snapshot.state not in WITHOUT_ENGINE
    return {
        "state": snapshot.state.value,
        "since_s": round(now - snapshot.since, 3),
        "settled": is_settled(snapshot),
        "reason": snapshot.reason,
        "phase": snapshot.phase,
        **_step(snapshot, engine.phases),
        "progress": snapshot.progress,
        "detail": snapshot.detail,
        "retry_in_s": round(max(deadline - now, 0.0), 1)
        if waits and deadline is not None
        else None,
        "looking": snapshot.rechecking,
        "start": dict(facts.start) if facts.start and snapshot.state is State.SERVING else None,
        "served": _describe_served(plan) if snapshot.state is State.SERVING else None,
        "model": plan.model if plan else None,
        "task": plan.task if plan else None,
        "mode": facts.mode,
        "mode_origin": facts.mode_origin,
        "engine_mode": engine.mode,
        "mtp": plan.mtp if plan else None,
        "rungs": list(plan.rungs) if plan else [],
        "degraded": _describe_degraded(plan, facts.degraded_since),
        "warnings": [
            *(plan.warnings if plan else ()),
            *facts.warnings,
            *filter(None, [engine.unrecorded]),
            *unused_kernels(engine.reported),
        ],
        "restarts": max(snapshot.spawns - 1, 0),
        "failures": snapshot.failures,
        "last_failure": _finding(snapshot.finding),
        "last_failure_s": _age(snapshot.found_at, now),
        "remedy": snapshot.remedy.text if snapshot.remedy else None,
        "obstacles": list(snapshot.remedy.obstacles) if snapshot.remedy else [],
        "refusal": _finding(snapshot.refusal),
        "generation": snapshot.generation,
        "revision": facts.revision,
        "engine_pid": engine.pid,
        "log_bytes_lost": engine.log_bytes_lost,
        "reported": dict(engine.reported),
        "forecast": compare(forecast_figures(engine.forecast), engine.reported) if lives else {},
        "figures": dict(facts.figures),
        "failed": dict(facts.failed),
        "gpus": [asdict(sample) for sample in facts.gpus],
        "daemon": asdict(facts.daemon),
    }


def _step(snapshot: Snapshot, phases: tuple[Phase, ...]) -> dict[str, str | None]:
    """The step of a start and its phase's title; both None outside a start or in unknown phases."""
    name = snapshot.phase or "launch"
    known = {phase.name: phase for phase in (*OWN_PHASES, *phases)}
    phase = known.get(name) if snapshot.state is State.STARTING else None
    if phase is None:
        return {"step": None, "phase_title": None}
    return {"step": phase.step, "phase_title": phase.title}


def unused_kernels(reported: Mapping[str, Any]) -> tuple[str, ...]:
    """Warn if the engine's log says why caovan's kernels are not used on a supported card."""
    reason = reported.get("kernels_refusal")
    return (f"{UNUSED}: {reason}",) if reason else ()


def _age(at: float | None, now: float) -> float | None:
    return None if at is None else round(now - at, 3)


def _describe_degraded(plan: Plan | None, since: float | None) -> dict[str, Any] | None:
    """The ladder's changes, their reasons, since when, and how to undo them; None for a full
    plan."""
    if plan is None or not plan.degraded:
        return None
    degraded = [
        setting.reason
        for setting in (*plan.settings.values(), *plan.env.values())
        if setting.origin in ("ladder", "remembered")
    ]
    return {
        "why": list(dict.fromkeys(degraded)),
        "since": since,
        "rungs": list(plan.rungs),
        "back": WAY_BACK,
    }


def is_settled(snapshot: Snapshot) -> bool:
    """Whether the last request has finally succeeded or failed."""
    return snapshot.state in SETTLED and not snapshot.replanning


def one_line(snapshot: Snapshot) -> str:
    """The state for `systemctl status` and the log."""
    if snapshot.state is State.STARTING:
        done = f" {snapshot.progress:.0%}" if snapshot.progress is not None else ""
        detail = f": {public_detail(snapshot.detail)}" if public_detail(snapshot.detail) else ""
        return f"STARTING, {snapshot.phase or 'launch'}{done}{detail}"
    if snapshot.state is State.SERVING and snapshot.plan:
        served = _describe_served(snapshot.plan)
        rungs = ", ".join(snapshot.plan.rungs)
        degraded = f", degraded: {rungs}" if snapshot.plan.degraded else ""
        return f"SERVING {served['name']} on {served['url']}, MTP {snapshot.plan.mtp}{degraded}"
    reason = snapshot.reason
    if snapshot.finding is not None:
        reason = reason.replace(snapshot.finding.text, snapshot.finding.public_text)
    return f"{snapshot.state.value}: {reason}" if reason else snapshot.state.value


def one_line_of_all(snapshots: Mapping[str, Snapshot]) -> str:
    """The states of all slots on one line, worst first; with names if there are several."""
    if len(snapshots) == 1:
        return one_line(*snapshots.values())
    return "; ".join(f"{name}: {one_line(snapshots[name])}" for name in worst_first(snapshots))


def worst_first(snapshots: Mapping[str, Snapshot]) -> list[str]:
    """Slot names: those that need attention first, those that serve a full plan last."""

    def rank(name: str) -> tuple[int, bool]:
        snapshot = snapshots[name]
        degraded = snapshot.plan is not None and snapshot.plan.degraded
        return WORST_FIRST.index(snapshot.state), not degraded

    return sorted(snapshots, key=rank)


def entry(name: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """A slot's entry in the list of slots: its document without the daemon's own fields."""
    fields = {key: value for key, value in document.items() if key not in DAEMON_FIELDS}
    return {"name": name, **fields}


def public(document: Mapping[str, Any]) -> dict[str, Any]:
    """The status document for the socket that every user may read, without text from the engine."""
    shown = {**document, "detail": public_detail(document["detail"])}
    # The reason comes from the plugin and may contain a path.
    for refused in unused_kernels(document["reported"]):
        shown["reported"] = {**document["reported"], "kernels_refusal": ""}
        shown["warnings"] = [
            UNUSED if warning == refused else warning for warning in document["warnings"]
        ]
    if "slots" in document:
        shown["slots"] = [public(slot) for slot in document["slots"]]
    for name in ("last_failure", "refusal"):
        finding = shown[name]
        if finding is None:
            continue
        text = Finding(**finding).public_text
        shown[name] = {**finding, "text": text, "captures": {}}
        shown["reason"] = shown["reason"].replace(finding["text"], text)
        if text != finding["text"]:
            # Texts derived from a finding quote its captures.
            shown.update(remedy=None, obstacles=[])
            if shown["degraded"] is not None:
                shown["degraded"] = {**shown["degraded"], "why": []}
    return shown


def public_detail(detail: str) -> str:
    """A phase's detail if every user may read it: text from the engine's log is in quotes."""
    return "" if '"' in detail else detail


def _describe_served(plan: Plan | None) -> dict[str, Any]:
    assert plan is not None
    host, port = plan.value("host") or "127.0.0.1", plan.value("port") or 8000
    scheme = "https" if plan.value("ssl_certfile") else "http"
    return {
        "name": plan.served_name,
        "host": host,
        "port": port,
        "url": f"{scheme}://{join_address(host, port)}/v1",
    }


def _finding(finding: Finding | None) -> dict[str, Any] | None:
    return None if finding is None else asdict(finding)
