"""Fit the document of the op `cluster` into one response."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from caovand.core.cluster.finding import finding
from caovand.core.facts.checks import CheckResult
from caovand.core.reporting.wire import MAX_BYTES

AVAILABLE_BYTES = MAX_BYTES - 1024
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
    document: Mapping[str, Any], findings: Sequence[tuple[str, CheckResult]]
) -> dict[str, Any]:
    """Add as many findings as fit, each with its node's name.

    The worst come first. The last entry counts the omitted ones, with the worst verdict among them.
    """
    document, unlisted = _shortened(document)
    if unlisted:
        findings = [("", _omitted_nodes(unlisted)), *findings]
    free = AVAILABLE_BYTES - _size(document)
    ranked = sorted(findings, key=lambda finding: WORST_FIRST.index(finding[1].verdict))
    entries = [_entry(name, result) for name, result in ranked]
    for at, entry in enumerate(entries):
        free -= _size(entry)
        if free < 0:
            entries[at:] = [_entry("", _omitted_findings(ranked[at:]))]
            break
    return {**document, "checks": entries}


def _shortened(document: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
    """Shorten the document until findings fit; return it and the number of omitted nodes.

    Absent nodes first lose their details; then those absent longest are omitted, because a head
    remembers more names than a response can hold.
    """
    available = AVAILABLE_BYTES - CHECKS_BYTES
    if _size(document) <= available:
        return document, 0
    nodes = [
        node if node["state"] in JOINED_STATES else {**node, **EMPTY_NODE}
        for node in document["nodes"]
    ]
    absent = [node for node in nodes if node["state"] not in JOINED_STATES]
    over, count = _size({**document, "nodes": nodes}) - available, len(nodes)
    for node in sorted(absent, key=lambda node: float(node["since_s"]), reverse=True):
        if over <= 0:
            break
        over -= _size(node)
        nodes.remove(node)
    return {**document, "nodes": nodes}, count - len(nodes)


def _omitted_nodes(count: int) -> CheckResult:
    text = f"the response is full: {count} lost or refused nodes are not listed"
    return finding("WARN", text, "restart caovan on the head: that drops absent nodes")


def _omitted_findings(rest: Sequence[tuple[str, CheckResult]]) -> CheckResult:
    text = f"the response is full: {len(rest)} more are not shown"
    if rest[0][1].verdict == "PASS":
        return replace(rest[0][1], text=f"{text}, all PASS", remedy="")
    remedy = "fix the findings shown here, and check again"
    return replace(rest[0][1], text=text, remedy=remedy)


def _entry(name: str, result: CheckResult) -> dict[str, Any]:
    return {
        "node": name, "verdict": result.verdict, "text": result.text, "remedy": result.remedy,
    }  # fmt: skip


def _size(part: Mapping[str, Any]) -> int:
    """Bytes that an entry takes in a frame, including its comma."""
    text = json.dumps(part, separators=(",", ":"), ensure_ascii=False)
    return len(text.encode("utf-8", "replace")) + 1
