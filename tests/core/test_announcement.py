"""Announcements of state changes."""

from __future__ import annotations

from dataclasses import replace

from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import Decision
from caovand.core.lifecycle.announcement import announcement
from caovand.core.lifecycle.state import Snapshot, State

SERVING = Snapshot(state=State.SERVING, since=10.0)
DIED = Finding("engine-died", "the engine core died", "serving")


def test_nothing_is_told_of_what_people_cannot_see() -> None:
    assert announcement(SERVING, replace(SERVING, deadline=99.0)) is None


def test_a_failure_is_told_once_with_its_cause_the_wait_and_the_remedy() -> None:
    after = replace(
        SERVING,
        state=State.BACKOFF,
        since=20.0,
        deadline=22.5,
        finding=DIED,
        reason=DIED.text,
        failures=1,
        remedy=Decision("same", text="the same plan again"),
    )
    told = announcement(SERVING, after)
    assert told is not None
    assert (told.kind, told.failed) == ("failure", True)
    assert told.text == (
        "SERVING -> BACKOFF: the engine core died; retry in 2.5 s; the same plan again"
    )
    assert told.data == {"state": "BACKOFF", "failures": 1}
    later = announcement(after, replace(after, state=State.STARTING))
    assert later is not None
    assert (later.kind, later.failed, later.text) == ("state", False, "BACKOFF -> STARTING")


def test_a_hold_whose_reason_changes_is_told_and_one_that_stays_is_not() -> None:
    hold = replace(SERVING, state=State.HOLD, reason="port 8000 is taken")
    told = announcement(hold, replace(hold, reason="no GPU answers"))
    assert told is not None
    assert told.text == "still HOLD: no GPU answers"
    assert announcement(hold, replace(hold, failures=2)) is None


AWAITED = Finding("node-missing", "1 of 2 nodes missing: n2 is silent", "plan")


def test_what_waits_for_another_node_has_not_failed_however_that_changes() -> None:
    hold = replace(SERVING, state=State.HOLD, finding=AWAITED, reason=AWAITED.text)
    told = announcement(replace(SERVING, state=State.STARTING), hold)
    assert told is not None
    assert (told.kind, told.failed) == ("state", False)
    assert told.text == f"STARTING -> HOLD: {AWAITED.text}"
    other = Finding("node-missing", "2 of 2 nodes missing", "plan")
    told = announcement(hold, replace(hold, finding=other, reason=other.text))
    assert told is not None
    assert (told.kind, told.text) == ("state", "still HOLD: 2 of 2 nodes missing")
    told = announcement(SERVING, replace(SERVING, refusal=AWAITED))
    assert told is not None
    assert told.kind == "state"
    # One that is here and that a check keeps out needs somebody.
    unfit = Finding("node-unfit", "node n2: vllm differs; fix: install it", "plan")
    told = announcement(hold, replace(hold, finding=unfit, reason=unfit.text))
    assert told is not None
    assert told.kind == "failure"
    told = announcement(replace(hold, state=State.STARTING), replace(hold, finding=unfit))
    assert told is not None
    assert (told.kind, told.failed) == ("failure", True)
    # A lost node, which ended an engine, is a failure.
    lost = replace(SERVING, state=State.RECYCLING, finding=replace(AWAITED, failure="node-lost"))
    told = announcement(SERVING, lost)
    assert told is not None
    assert (told.kind, told.failed) == ("failure", True)


def test_a_plan_that_is_refused_beside_a_serving_engine_is_told_once() -> None:
    refused = replace(SERVING, refusal=Finding("bad-arguments", "no such flag", "plan"))
    told = announcement(SERVING, refused)
    assert told is not None
    assert told.text == "the new plan cannot be used: no such flag"
    assert announcement(refused, replace(refused, failures=1)) is None
