"""What stays true has to be said on: an engine that could not be ended, a file that was refused."""

from __future__ import annotations

import pytest

from caovand.core.events import (
    Exited,
    Gone,
    Inspect,
    Planned,
    Proven,
    Reconfigured,
    Refused,
    Restart,
    Start,
    Stop,
    Tick,
    Unkillable,
)
from caovand.core.failure import Finding
from caovand.core.machine import State, step
from tests.core.test_machine import BUSY, OOM, PLANS, RULES, after, failed_once, serving

STUCK = Finding("unknown", "cannot end the engine: pid 7 outlived KILL", "ending")


def test_a_refused_reload_is_still_told_when_the_plan_before_is_started_again() -> None:
    s = after(serving(PLANS[0]), Reconfigured(1.0))
    s = after(s, Refused(2.0, 0.5, s.inspection, BUSY, hold=True))
    s = failed_once(s, 3.0)
    assert (s.state, s.refusal) == (State.STARTING, BUSY)
    again = after(s, Planned(20.0, 0.5, s.inspection, PLANS[0]), Proven(21.0, 0.5, s.generation))
    assert (again.state, again.refusal) == (State.SERVING, BUSY)
    # A mode that waited for this start: the plan was made anew, of the file that was refused.
    assert after(s, Planned(20.0, 0.5, s.inspection, PLANS[2])).refusal is None
    assert after(again, Stop(30.0)).refusal is None
    backing_off = after(
        again, Exited(30.0, 0.5, again.generation, OOM), Gone(31.0, 0.5, s.generation)
    )
    assert (backing_off.state, backing_off.refusal) == (State.BACKOFF, BUSY)
    assert after(backing_off, Start(32.0)).refusal is None


@pytest.mark.parametrize("left", [False, True])
def test_a_second_stop_says_again_what_the_first_could_not_end(left: bool) -> None:
    s = after(serving(PLANS[0]), Stop(1.0))
    last = Unkillable(2.0, 0.5, s.generation, STUCK) if left else Gone(2.0, 0.5, s.generation)
    s = after(s, last, Stop(3.0), Stop(4.0))
    assert (s.state, s.reason) == (State.STOPPED, STUCK.text if left else "stopped")
    assert after(s, Start(5.0)).reason == ""


@pytest.mark.parametrize(("finding", "reason"), [(STUCK, STUCK.text), (BUSY, "stopped")])
def test_a_stop_in_hold_says_what_could_not_be_ended(finding: Finding, reason: str) -> None:
    s = after(serving(PLANS[0]), Restart(1.0))
    s = after(s, Unkillable(2.0, 0.5, s.generation, STUCK))
    s, (look,) = step(s, Tick(s.deadline or 0.0), RULES)
    assert isinstance(look, Inspect)
    s = after(s, Refused(30.0, 0.5, look.number, finding, hold=True))
    assert after(s, Stop(31.0)).reason == reason
