"""The document of the op `cluster` as one answer has room for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from caovand.core.cluster.finding import finding
from caovand.core.facts.checks import CheckResult
from caovand.core.reporting.wire import MAX_BYTES

ROOM_BYTES = MAX_BYTES - 1024
"""The room in an answer for nodes and findings; the frame and the line about omissions take the
rest."""
CHECKS_BYTES = 4096
"""The part of it that absent nodes must leave to the findings."""
HERE = ("here", "joined")
BARE: Mapping[str, Any] = {
    "facts": {}, "link": None, "ranks": [], "gpus": [], "reported": {}, "network": "",
}  # fmt: skip
"""An entry of which nothing more is known than who it is, and since when it is not here."""
WORST_FIRST = ("FAIL", "WARN", "PASS")


def with_checks(
    document: Mapping[str, Any], found: Sequence[tuple[str, CheckResult]]
) -> dict[str, Any]:
    """The document with these findings, each with its node's name: as many as there is room for.

    The worst come first. A last one counts those left out, with the verdict of the worst of them.
    """
    document, unlisted = _shortened(document)
    if unlisted:
        found = [("", _unlisted(unlisted)), *found]
    room = ROOM_BYTES - _size(document)
    ranked = sorted(found, key=lambda one: WORST_FIRST.index(one[1].verdict))
    told = [_entry(name, one) for name, one in ranked]
    for at, entry in enumerate(told):
        room -= _size(entry)
        if room < 0:
            told[at:] = [_entry("", _left_out(ranked[at:]))]
            break
    return {**document, "checks": told}


def _shortened(document: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
    """The document with room for findings, and how many nodes are left out of it.

    Of those that are not here the details go first, and then those that went the longest ago: a
    head remembers more names than an answer has room for.
    """
    room = ROOM_BYTES - CHECKS_BYTES
    if _size(document) <= room:
        return document, 0
    nodes = [one if one["state"] in HERE else {**one, **BARE} for one in document["nodes"]]
    gone = [one for one in nodes if one["state"] not in HERE]
    over, count = _size({**document, "nodes": nodes}) - room, len(nodes)
    for one in sorted(gone, key=lambda one: float(one["since_s"]), reverse=True):
        if over <= 0:
            break
        over -= _size(one)
        nodes.remove(one)
    return {**document, "nodes": nodes}, count - len(nodes)


def _unlisted(count: int) -> CheckResult:
    text = f"not listed, as this answer has no room: {count} nodes that are lost or refused"
    return finding("WARN", text, "restart caovan on the head, which forgets those that are gone")


def _left_out(rest: Sequence[tuple[str, CheckResult]]) -> CheckResult:
    text = f"not shown, as this answer has no room: {len(rest)} more"
    if rest[0][1].verdict == "PASS":
        return replace(rest[0][1], text=f"{text}, which PASS", remedy="")
    remedy = "end the causes of those that are shown, and check again"
    return replace(rest[0][1], text=text, remedy=remedy)


def _entry(name: str, one: CheckResult) -> dict[str, Any]:
    return {"node": name, "verdict": one.verdict, "text": one.text, "remedy": one.remedy}


def _size(part: Mapping[str, Any]) -> int:
    """Its bytes in a frame, and a comma."""
    text = json.dumps(part, separators=(",", ":"), ensure_ascii=False)
    return len(text.encode("utf-8", "replace")) + 1
