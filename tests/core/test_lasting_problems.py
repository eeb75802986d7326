"""Lasting problems keep being reported: an engine that could not be ended, a refused file."""

from __future__ import annotations

import pytest

from caovand.core.healing.failure import Finding
from caovand.core.lifecycle.events import (
    Exited,
    Gone,
    Inspect,
    Planned,
    Proven,
    Reconfigured,
    Restart,
    Start,
    StartRefused,
    Stop,
    TimePassed,
    Unkillable,
)
from caovand.core.lifecycle.state import State
from caovand.core.lifecycle.transitions import step
from tests.core.test_lifecycle import BUSY, OOM, PLANS, RULES, after, failed_once, serving

STUCK = Finding("unknown", "cannot stop the engine: pid 7 outlived KILL", "ending")


def test_a_refused_reload_is_still_told_when_the_plan_before_is_started_again() -> None:
    s = after(serving(PLANS[0]), Reconfigured(at=1.0))
    s = after(s, StartRefused(at=2.0, inspection=s.inspection, finding=BUSY, hold=True))
    s = failed_once(s, 3.0)
    assert (s.state, s.refusal) == (State.STARTING, BUSY)
    again = after(
        s,
        Planned(at=20.0, inspection=s.inspection, plan=PLANS[0]),
        Proven(at=21.0, generation=s.generation),
    )
    assert (again.state, again.refusal) == (State.SERVING, BUSY)
    # A mode that waited for this start: the plan was made anew, of the file that was refused.
    assert after(s, Planned(at=20.0, inspection=s.inspection, plan=PLANS[2])).refusal is None
    assert after(again, Stop(at=30.0)).refusal is None
    backing_off = after(
        again,
        Exited(at=30.0, generation=again.generation, finding=OOM),
        Gone(at=31.0, generation=s.generation),
    )
    assert (backing_off.state, backing_off.refusal) == (State.BACKOFF, BUSY)
    assert after(backing_off, Start(at=32.0)).refusal is None


@pytest.mark.parametrize("left", [False, True])
def test_a_second_stop_says_again_what_the_first_could_not_end(left: bool) -> None:
    s = after(serving(PLANS[0]), Stop(at=1.0))
    last = (
        Unkillable(at=2.0, generation=s.generation, finding=STUCK)
        if left
        else Gone(at=2.0, generation=s.generation)
    )
    s = after(s, last, Stop(at=3.0), Stop(at=4.0))
    assert (s.state, s.reason) == (State.STOPPED, STUCK.text if left else "stopped")
    assert after(s, Start(at=5.0)).reason == ""


@pytest.mark.parametrize(("finding", "reason"), [(STUCK, STUCK.text), (BUSY, "stopped")])
def test_a_stop_in_hold_says_what_could_not_be_ended(finding: Finding, reason: str) -> None:
    s = after(serving(PLANS[0]), Restart(at=1.0))
    s = after(s, Unkillable(at=2.0, generation=s.generation, finding=STUCK))
    s, (look,) = step(s, TimePassed(at=s.deadline or 0.0), RULES)
    assert isinstance(look, Inspect)
    s = after(s, StartRefused(at=30.0, inspection=look.number, finding=finding, hold=True))
    assert after(s, Stop(at=31.0)).reason == reason
