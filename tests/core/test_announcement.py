"""What people are told of a change."""

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


def test_a_plan_that_is_refused_beside_a_serving_engine_is_told_once() -> None:
    refused = replace(SERVING, refusal=Finding("bad-arguments", "no such flag", "plan"))
    told = announcement(SERVING, refused)
    assert told is not None
    assert told.text == "the new plan cannot be used: no such flag"
    assert announcement(refused, replace(refused, failures=1)) is None
