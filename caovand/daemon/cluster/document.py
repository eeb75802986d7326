"""Fit the document of the op `cluster` into one response."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from caovand.core.cluster.finding import finding
from caovand.core.facts.checks import CheckResult
from caovand.core.reporting.wire import MAX_BYTES

ROOM_BYTES = MAX_BYTES - 1024
"""Space in a response for nodes and findings; the frame and the line about omissions take the
rest."""
CHECKS_BYTES = 4096
"""Space that absent nodes must leave for findings."""
JOINED_STATES = ("here", "joined")
EMPTY_NODE: Mapping[str, Any] = {
    "facts": {}, "link": None, "ranks": [], "gpus": [], "reported": {}, "network": "",
}  # fmt: skip
"""An entry that contains only a node's name, and how long it has been absent."""
WORST_FIRST = ("FAIL", "WARN", "PASS")


def with_checks(
    document: Mapping[str, Any], found: Sequence[tuple[str, CheckResult]]
) -> dict[str, Any]:
    """Add findings, each with its node's name, as far as there is room.

    The worst come first. The last entry counts the omitted ones, with the worst verdict among them.
    """
    document, unlisted = _shortened(document)
    if unlisted:
        found = [("", _omitted_nodes(unlisted)), *found]
    room = ROOM_BYTES - _size(document)
    ranked = sorted(found, key=lambda one: WORST_FIRST.index(one[1].verdict))
    entries = [_entry(name, one) for name, one in ranked]
    for at, entry in enumerate(entries):
        room -= _size(entry)
        if room < 0:
            entries[at:] = [_entry("", _omitted_findings(ranked[at:]))]
            break
    return {**document, "checks": entries}


def _shortened(document: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
    """The document with room for findings, and the number of omitted nodes.

    Absent nodes first lose their details; then those absent longest are omitted, because a head
    remembers more names than a response can hold.
    """
    room = ROOM_BYTES - CHECKS_BYTES
    if _size(document) <= room:
        return document, 0
    nodes = [
        one if one["state"] in JOINED_STATES else {**one, **EMPTY_NODE} for one in document["nodes"]
    ]
    gone = [one for one in nodes if one["state"] not in JOINED_STATES]
    over, count = _size({**document, "nodes": nodes}) - room, len(nodes)
    for one in sorted(gone, key=lambda one: float(one["since_s"]), reverse=True):
        if over <= 0:
            break
        over -= _size(one)
        nodes.remove(one)
    return {**document, "nodes": nodes}, count - len(nodes)


def _omitted_nodes(count: int) -> CheckResult:
    text = f"not listed, as this answer has no room: {count} nodes that are lost or refused"
    return finding("WARN", text, "restart caovan on the head, which forgets those that are gone")


def _omitted_findings(rest: Sequence[tuple[str, CheckResult]]) -> CheckResult:
    text = f"not shown, as this answer has no room: {len(rest)} more"
    if rest[0][1].verdict == "PASS":
        return replace(rest[0][1], text=f"{text}, which PASS", remedy="")
    remedy = "end the causes of those that are shown, and check again"
    return replace(rest[0][1], text=text, remedy=remedy)


def _entry(name: str, one: CheckResult) -> dict[str, Any]:
    return {"node": name, "verdict": one.verdict, "text": one.text, "remedy": one.remedy}


def _size(part: Mapping[str, Any]) -> int:
    """Bytes that an entry takes in a frame, including its comma."""
    text = json.dumps(part, separators=(",", ":"), ensure_ascii=False)
    return len(text.encode("utf-8", "replace")) + 1
