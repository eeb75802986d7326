"""Turn a state change into one log line and one event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from caovand.core.healing.failure import Failure, Finding
from caovand.core.lifecycle.state import Snapshot, State

AWAITED_CONDITIONS: frozenset[Failure] = frozenset({"node-missing"})
"""Conditions to wait for that are no failures: a worker usually waits for its head."""


@dataclass(frozen=True)
class Announcement:
    """A log line and its event; `failed` marks a failure that was not announced before."""

    kind: str
    text: str
    data: dict[str, Any]
    failed: bool = False


def announcement(before: Snapshot, after: Snapshot) -> Announcement | None:
    """The announcement of `after`; None if nothing of interest to people changed."""
    if after.state is not before.state:
        return _new_state(before, after)
    if after.state is State.HOLD and after.reason != before.reason:
        text = f"still HOLD: {after.reason}"
        return Announcement(_kind(after.finding), text, {"state": after.state.value})
    if after.refusal is not None and after.refusal is not before.refusal:
        text = f"the new plan cannot be used: {after.refusal.text}"
        return Announcement(_kind(after.refusal), text, {})
    return None


def _kind(finding: Finding | None) -> str:
    """The kind of event for this finding."""
    return "state" if finding is not None and finding.failure in AWAITED_CONDITIONS else "failure"


def _new_state(before: Snapshot, after: Snapshot) -> Announcement:
    text = f"{before.state.value} -> {after.state.value}"
    failed = after.finding is not None and after.finding is not before.finding
    if after.reason and (failed or after.reason != before.reason):
        text += f": {after.reason}"
    if after.state is State.BACKOFF and after.deadline is not None:
        text += f"; retry in {after.deadline - after.since:.1f} s"
    if failed and after.remedy is not None and after.remedy.text:
        text += f"; {after.remedy.text}"
    data = {"state": after.state.value, "failures": after.failures}
    kind = _kind(after.finding) if failed else "state"
    return Announcement(kind, text, data, failed=kind == "failure")
