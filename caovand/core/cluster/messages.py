"""The messages between the head and its workers, about once a second: their whole state.

The head sends each worker its *order*: the plan and rank to run now, or none. A worker sends a
*report*: its facts, what it runs, and how that failed. There are no requests and no replies: the
next message corrects the effect of a lost, late or repeated one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from caovand.core.cluster.link import (
    Probe,
    ProbeReport,
    probe_from,
    probe_to,
    reached_from,
    reached_to,
)
from caovand.core.cluster.plan_document import BadDocument, plan_from, plan_to
from caovand.core.healing.failure import FAILURES, Finding
from caovand.core.plan import Plan
from caovand.core.printable import one_line

VERSION = 1
MAX_BYTES = 256 * 1024
EACH_S = 1.0
"""Interval of messages; a change is sent at once."""
LOST_S = 20.0
"""Silence after which the other side counts as lost: a cut of ten seconds ends no engine."""
MAX_GPUS = 1024  # far more than a machine has
MAX_TEXT, MAX_NAME = 2048, 64  # maximum characters of a text, and of a name that is only displayed


@dataclass(frozen=True)
class Order:
    """What one worker is to run: rank `rank` of start `start`, or nothing without a plan.

    `start` differs for each attempt. `proven` says that the head's engine answers; until then
    `phase`, `progress` and `detail` say how far its start is. `sent` is the head's clock, which
    reports echo. `refusal` says why this worker cannot take part; "" if it can. `name` is the
    head's; `head` differs for each run of its daemon. `evidence` names a failed start whose
    evidence the head lacks, "" without one; `stacks` requests the stacks of living ranks. `probe`
    is a port check for a worker without an engine.
    """

    head: str
    start: str = ""
    plan: Plan | None = None
    rank: int = 0
    proven: bool = False
    phase: str = ""
    detail: str = ""
    sent: float = 0.0
    refusal: str = ""
    name: str = ""
    evidence: str = ""
    stacks: bool = False
    progress: float | None = None
    probe: Probe | None = None


@dataclass(frozen=True)
class Report:
    """A worker's state. `boot` differs for each run of its daemon, `facts` is a NodeFacts document.

    `running` is the start whose engine it runs, "" without one; `failed` is the start that failed,
    and `finding` says why. `stopped` says that the operator stopped the engine. `ranks` holds each
    rank's name, pid and card, None if unknown. `sizes` is the ranks' memory in GiB according to the
    log, `network` what NCCL uses to other nodes. `echo` is the `sent` of the last order, `held_s`
    how long ago it arrived. `reached` is the result of the last probe.
    """

    name: str
    boot: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    state: str = ""
    running: str = ""
    failed: str = ""
    finding: Finding | None = None
    stopped: bool = False
    ranks: tuple[tuple[str, int, int | None], ...] = ()
    sizes: Mapping[str, float] = field(default_factory=dict)
    network: str = ""
    clock: float = 0.0
    echo: float = 0.0
    held_s: float = 0.0
    reached: ProbeReport | None = None


def encode_order(order: Order) -> bytes:
    """Encode an order as a frame."""
    plan = plan_to(order.plan) if order.plan is not None else None
    fields = {name: _short(getattr(order, name)) for name in _ORDER}
    more = {"progress": order.progress, "plan": plan, "probe": probe_to(order.probe)}
    return dump({"v": VERSION, **fields, **more})


def decode_order(frame: bytes) -> Order:
    """Decode an order. Raises BadDocument."""
    document = load(frame, {*_ORDER, "progress", "plan", "probe"})
    plan, progress = document["plan"], document["progress"]
    found = {name: _typed(document, name, kind) for name, kind in _ORDER.items()}
    return Order(
        **found,
        progress=None if progress is None else _typed(document, "progress", float),
        plan=None if plan is None else plan_from(plan),
        probe=probe_from(document["probe"]),
    )


def encode_report(report: Report) -> bytes:
    """Encode a report as a frame."""
    finding = asdict(report.finding) if report.finding else None
    fields = {name: _short(getattr(report, name)) for name in _REPORT}
    more = {"facts": dict(report.facts), "ranks": [list(one) for one in report.ranks]}
    tables = {"sizes": dict(report.sizes), "reached": reached_to(report.reached)}
    return dump({"v": VERSION, **fields, **more, "finding": finding, **tables})


def decode_report(frame: bytes) -> Report:
    """Decode a report. Raises BadDocument."""
    document = load(frame, {*_REPORT, "facts", "ranks", "sizes", "finding", "reached"})
    facts, ranks, finding = (document[name] for name in ("facts", "ranks", "finding"))
    sizes = document["sizes"]
    if not isinstance(facts, dict):
        raise BadDocument("facts is not a table")
    if not isinstance(ranks, list) or len(ranks) > 64 or not all(map(_is_rank, ranks)):
        raise BadDocument("ranks is not a list of names, pids and cards")
    if not isinstance(sizes, dict) or len(sizes) > 64 or any(len(name) > 64 for name in sizes):
        raise BadDocument("sizes is not a short table")
    found = {name: _typed(document, name, kind) for name, kind in _REPORT.items()}
    return Report(
        **found,
        facts=facts,
        ranks=tuple((name, pid, gpu) for name, pid, gpu in ranks),
        sizes={name: _typed(sizes, name, float) for name in sizes},
        finding=None if finding is None else finding_from(finding),
        reached=reached_from(document["reached"]),
    )


def name_in(frame: bytes) -> str:
    """Name of the sender of an unreadable report; "" if the name is unreadable too."""
    if len(frame) > MAX_BYTES:
        return ""
    try:
        document = json.loads(frame)
    except (ValueError, RecursionError):
        return ""
    name = document.get("name") if isinstance(document, dict) else ""
    return one_line(name)[:MAX_NAME] if isinstance(name, str) else ""


_ORDER: Mapping[str, type] = {
    "head": str, "start": str, "rank": int, "proven": bool, "phase": str, "detail": str,
    "sent": float, "refusal": str, "name": str, "evidence": str, "stacks": bool,
}  # fmt: skip
_REPORT: Mapping[str, type] = {
    "name": str, "boot": str, "state": str, "running": str, "failed": str, "stopped": bool,
    "network": str, "clock": float, "echo": float, "held_s": float,
}  # fmt: skip


def _short(value: Any) -> Any:
    """Shorten a text to the size a message allows: the sender's own status has all of it."""
    return value[:MAX_TEXT] if isinstance(value, str) else value


def _typed(document: Mapping[str, Any], name: str, kind: type) -> Any:
    value = document[name]
    if kind is float and type(value) is int and abs(value) < 1 << 53:
        value = float(value)
    fits = type(value) is kind
    if not fits or (kind is float and not math.isfinite(value)):
        raise BadDocument(f"{name} is not of type {kind.__name__}")
    if kind is str and len(value) > MAX_TEXT:
        raise BadDocument(f"{name} is too long")
    return value


def _is_rank(found: Any) -> bool:
    if not isinstance(found, list) or len(found) != 3:
        return False
    name, pid, gpu = found
    if gpu is not None and (type(gpu) is not int or not 0 <= gpu < MAX_GPUS):
        return False
    return isinstance(name, str) and len(name) <= 64 and type(pid) is int and pid > 0


def _is_capture(found: tuple[Any, Any]) -> bool:
    name, value = found
    return len(name) <= 64 and isinstance(value, str) and len(value) <= MAX_TEXT


def finding_from(found: Any) -> Finding:
    """Decode a finding. Raises BadDocument."""
    names = ("failure", "text", "phase", "signature")
    if not isinstance(found, dict) or set(found) != {*names, "captures", "line"}:
        raise BadDocument("finding has other parts")
    if not all(isinstance(found[name], str) for name in names):
        raise BadDocument("a part of finding is not a text")
    captures, line = found["captures"], found["line"]
    if found["failure"] not in FAILURES or type(line) is not int:
        raise BadDocument("finding is of an unknown failure")
    if not isinstance(captures, dict) or not all(map(_is_capture, captures.items())):
        raise BadDocument("captures of finding is not a table of short texts")
    return Finding(**{**found, "text": found["text"][:MAX_TEXT]})


def dump(document: Mapping[str, Any]) -> bytes:
    """Encode a message as JSON."""
    return json.dumps(document, separators=(",", ":"), default=str).encode()


def load(frame: bytes, names: set[str]) -> dict[str, Any]:
    """Decode a message with exactly these fields. Raises BadDocument."""
    if len(frame) > MAX_BYTES:
        raise BadDocument(f"{len(frame)} bytes are more than {MAX_BYTES}")
    try:
        document = json.loads(frame)
    except (ValueError, RecursionError) as problem:
        raise BadDocument("it is not JSON") from problem
    if not isinstance(document, dict) or document.get("v") != VERSION:
        raise BadDocument(f"it is not of version {VERSION}: nodes must have the same caovan")
    if set(document) != {"v", *names}:
        raise BadDocument("it has other fields: nodes must have the same caovan")
    return document
