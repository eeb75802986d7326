"""A worker's evidence of a failed start, for the incident on the head; bounded and without secrets.

The head's order names the start for as long as the head lacks the evidence. Until then the worker
sends it with each report, so losing a message never loses the evidence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from caovand.core.cluster.messages import MAX_TEXT, dump, load, read_finding
from caovand.core.document import (
    BadDocument,
    PartReader,
    listed,
    number,
    optional,
    record,
    string,
    whole,
)
from caovand.core.healing.failure import Finding

MARK = b"evidence "
"""Prefix by which the head tells an evidence frame from a report."""
MAX_LINE = 2000
# Limits of each part in bytes of JSON, where a character takes up to 12. With the other texts they
# stay below the size of a message.
LOG_BYTES, STACKS_BYTES, KERNEL_BYTES, CARDS_BYTES = 80 << 10, 56 << 10, 16 << 10, 16 << 10
NAME = 64  # characters of a phase, signature or time
CARD: Mapping[str, PartReader[Any]] = {
    **dict.fromkeys(("index", "used_mib", "total_mib"), whole()),
    **dict.fromkeys(("utilization", "temperature", "power_w"), optional(number())),
    **dict.fromkeys(("throttled", "fault"), string()),
}
"""Fields of a card's latest sample that are sent."""
LINES = ("kernel", "stacks", "log")


@dataclass(frozen=True)
class NodeEvidence:
    """A node's evidence of the start `start`, gathered `at` (its own wall-clock time, for people).

    `finding` is the failure on that node; None if its rank ended because of another node. `lacks`
    says what could not be gathered, and why.
    """

    start: str
    at: str = ""
    lacks: str = ""
    finding: Finding | None = None
    cards: tuple[Mapping[str, Any], ...] = ()
    kernel: tuple[str, ...] = ()
    stacks: tuple[str, ...] = ()
    log: tuple[str, ...] = ()


def select_evidence(
    start: str,
    report: Mapping[str, Any],
    files: Mapping[str, str],
    *,
    failed: bool,
    lacks: str = "",
) -> NodeEvidence:
    """Select the parts of a sanitised incident to send: the latest lines and each card's latest
    sample.

    `failed` says that the incident's finding is about this node.
    """
    latest = {sample["index"]: sample for sample in report["gpu_samples"]}
    samples = (latest[index] for index in sorted(latest))
    kernel, stacks, log = (_lines(files.get(f"{name}.txt", "")) for name in LINES)
    return NodeEvidence(
        start=start,
        at=report["at"][:NAME],
        lacks=lacks[:MAX_TEXT],
        finding=_short(Finding(**report["finding"])) if failed else None,
        cards=_first(({name: sample[name] for name in CARD} for sample in samples), CARDS_BYTES),
        kernel=_last(kernel, KERNEL_BYTES),
        stacks=_first(_cut(stacks), STACKS_BYTES),
        log=_last(log, LOG_BYTES),
    )


def document(name: str, rank: int, evidence: NodeEvidence) -> dict[str, Any]:
    """The incident file with a node's evidence."""
    fields = asdict(evidence)
    del fields["start"]
    return {"name": name, "rank": rank, **fields}


def missing_evidence(name: str, rank: int, reason: str) -> dict[str, Any]:
    """The incident file of a node that sent no evidence."""
    return {"name": name, "rank": rank, "missing": reason}


def encode(evidence: NodeEvidence) -> bytes:
    """Encode evidence as a frame."""
    return MARK + dump(asdict(evidence))


def read_frame(frame: bytes) -> NodeEvidence:
    """Decode an evidence frame. Raises BadDocument."""
    if not frame.startswith(MARK):
        raise BadDocument("", "is not evidence of a failure")
    return load(frame[len(MARK) :], _EVIDENCE)


def _short(finding: Finding) -> Finding:
    """Shorten a finding and drop its log captures: its text already contains them."""
    phase, signature = finding.phase[:NAME], finding.signature[:NAME]
    text = finding.text[:MAX_TEXT]
    return replace(finding, text=text, phase=phase, signature=signature, captures={})


def _lines(text: str) -> Sequence[str]:
    return text.rstrip("\n").split("\n") if text.strip() else ()


def _cut(lines: Sequence[str]) -> Iterable[str]:
    return (line[:MAX_LINE] for line in lines)


def _last(lines: Sequence[str], max_bytes: int) -> tuple[str, ...]:
    return _first(_cut(lines[::-1]), max_bytes)[::-1]


def _first(entries: Iterable[Any], max_bytes: int) -> tuple[Any, ...]:
    """The first entries that fit into `max_bytes` of JSON."""
    first = []
    for entry in entries:
        max_bytes -= len(json.dumps(entry)) + 2
        if max_bytes < 0:
            break
        first.append(entry)
    return tuple(first)


_EVIDENCE: PartReader[NodeEvidence] = record(NodeEvidence, {
    **dict.fromkeys(("start", "at", "lacks"), string(MAX_TEXT)),
    **dict.fromkeys(LINES, listed(string(MAX_LINE))),
    "cards": listed(record(dict, CARD)),
    "finding": optional(read_finding),
})  # fmt: skip
