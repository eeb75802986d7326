"""The messages between the head and its workers, about once a second: their whole state.

The head sends each worker its *order*: the plan and rank to run now, or none. A worker sends a
*report*: its facts, what it runs, and how that failed. There are no requests and no replies: the
next message corrects the effect of a lost, late or repeated one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from caovand.core.cluster.link import Probe, ProbeReport, read_probe, read_probe_report
from caovand.core.cluster.plan_document import plan_to, read_plan
from caovand.core.document import (
    BadDocument,
    PartReader,
    anything,
    flag,
    into,
    listed,
    number,
    one_of,
    optional,
    record,
    row,
    string,
    table,
    whole,
)
from caovand.core.healing.failure import FAILURES, Finding
from caovand.core.plan import Plan
from caovand.core.printable import one_line

T = TypeVar("T")
VERSION = 2
MAX_BYTES = 256 * 1024
EACH_S = 1.0
"""Interval of messages; a change is sent at once."""
LOST_S = 20.0
"""Silence after which the other side counts as lost: an outage of ten seconds stops no engine."""
MAX_GPUS = 1024  # far more than a machine has
MAX_RANKS = MAX_SIZES = 64
MAX_TEXT, MAX_NAME = 2048, 64  # maximum characters of a text, and of a name that is only displayed


@dataclass(frozen=True)
class Order:
    """The head's order to one worker: run rank `rank` of start `start`, or nothing without a plan.

    `start` differs for each attempt. `proven` says that the head's engine answers; until then
    `phase`, `progress` and `detail` say how far its start is. `sent` is the head's clock, which
    reports echo. `refusal` says why this worker cannot take part; "" if it can. `name` is the
    head's; `head` differs for each run of its daemon. `evidence` names a failed start whose
    evidence the head lacks, "" without one; `stacks` requests the stacks of living ranks. `probe`
    is for a worker without an engine.
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
    how long ago it arrived. `probe` is the result of the last probe.
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
    probe: ProbeReport | None = None


def encode_order(order: Order) -> bytes:
    """Encode an order as a frame."""
    plan = plan_to(order.plan) if order.plan is not None else None
    return dump({**_shortened(order), "plan": plan, "probe": order.probe and asdict(order.probe)})


def decode_order(frame: bytes) -> Order:
    """Decode an order. Raises BadDocument."""
    return load(frame, _ORDER)


def encode_report(report: Report) -> bytes:
    """Encode a report as a frame."""
    tables = {"facts": dict(report.facts), "sizes": dict(report.sizes)}
    parts = {"finding": report.finding, "probe": report.probe}
    documents = {name: part and asdict(part) for name, part in parts.items()}
    return dump({**_shortened(report), **tables, **documents})


def decode_report(frame: bytes) -> Report:
    """Decode a report. Raises BadDocument."""
    return load(frame, _REPORT)


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


def dump(fields: Mapping[str, Any]) -> bytes:
    """Encode a message as JSON."""
    return json.dumps({"v": VERSION, **fields}, separators=(",", ":"), default=str).encode()


def load(frame: bytes, reader: PartReader[T]) -> T:
    """Decode a message by the reader of its fields. Raises BadDocument."""
    if len(frame) > MAX_BYTES:
        raise BadDocument("", f"has {len(frame)} bytes, more than {MAX_BYTES}")
    try:
        document = json.loads(frame)
    except (ValueError, RecursionError):
        raise BadDocument("", "is not JSON") from None
    if not isinstance(document, dict) or document.pop("v", None) != VERSION:
        raise BadDocument("", f"does not have version {VERSION}: nodes must run the same caovan")
    return reader(document, "")


def _shortened(message: Order | Report) -> dict[str, Any]:
    """The fields; a reason may be too long for a message, the sender's own status has all of it."""
    return {
        name: value[:MAX_TEXT] if isinstance(value, str) else value
        for name, value in vars(message).items()
    }


_TEXT, _NAME = string(MAX_TEXT), string(MAX_NAME)
read_finding: PartReader[Finding] = into(
    lambda finding: replace(finding, text=finding.text[:MAX_TEXT]),
    record(Finding, {
        "failure": one_of(FAILURES),
        **dict.fromkeys(("text", "phase", "signature"), string()),
        "captures": table(_TEXT, name=_NAME),
        "line": whole(),
    }),
)  # fmt: skip
"""Read the finding in a part of a message."""
_ORDER: PartReader[Order] = record(Order, {
    **dict.fromkeys(("head", "start", "phase", "detail", "refusal", "name", "evidence"), _TEXT),
    **dict.fromkeys(("proven", "stacks"), flag),
    "rank": whole(),
    "sent": number(),
    "progress": optional(number()),
    "plan": optional(read_plan),
    "probe": read_probe,
})  # fmt: skip
_REPORT: PartReader[Report] = record(Report, {
    **dict.fromkeys(("name", "boot", "state", "running", "failed", "network"), _TEXT),
    **dict.fromkeys(("clock", "echo", "held_s"), number()),
    "stopped": flag,
    "facts": table(anything),
    "ranks": listed(row(_NAME, whole(1), optional(whole(high=MAX_GPUS - 1))), MAX_RANKS),
    "sizes": table(number(), MAX_SIZES, _NAME),
    "finding": optional(read_finding),
    "probe": read_probe_report,
})  # fmt: skip
