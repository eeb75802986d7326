"""The cause of an engine's end."""

from __future__ import annotations

import pytest

from caovand.core.healing.failure import Finding
from caovand.core.lifecycle.cause import CAUSES, cause_of_end
from caovand.core.lifecycle.events import (
    Exited,
    Failed,
    LifecycleEvent,
    Planned,
    Restart,
    Stop,
    TimePassed,
)
from caovand.core.lifecycle.state import LifecycleRules, Snapshot, State
from caovand.core.lifecycle.transitions import step
from caovand.core.plan import Plan, Setting

PLAN = Plan("m", {}, {})
OTHER = Plan("m", {"mtp": Setting(4, "user", "")}, {})
SERVING = Snapshot(state=State.SERVING, plan=PLAN, spawned=True, generation=1, inspection=1)
OLD = Finding("hang", "an earlier one")
OOM = Finding("device-oom-run", "out of memory")


@pytest.mark.parametrize(
    ("before", "event", "cause"),
    [
        (State.SERVING, Exited(at=1.0, generation=1, finding=OOM), "device-oom-run"),
        (State.SERVING, Failed(at=1.0, generation=1, finding=OOM), "device-oom-run"),
        (State.STARTING, TimePassed(at=1e6), "start-stall"),
        (State.SERVING, Restart(at=1.0), "operator"),
        (State.SERVING, Restart(at=1.0, by="head"), "head"),
        (State.SERVING, Stop(at=1.0), "operator"),
        (State.SERVING, Planned(at=1.0, inspection=1, plan=OTHER), "plan"),
        (State.SERVING, Planned(at=1.0, inspection=1, plan=PLAN), ""),
        (State.SERVING, TimePassed(at=1e6), ""),
    ],
)
def test_an_end_has_one_cause_whatever_failed_before(
    before: State, event: LifecycleEvent, cause: str
) -> None:
    snapshot = SERVING.enter(before, 0.0, 10.0, spawned=True).with_finding(OLD, 0.0)
    after, _ = step(snapshot, event, LifecycleRules())
    assert cause_of_end(snapshot, event, after) == cause
    assert cause in ("", *CAUSES)
    assert cause_of_end(
        after, TimePassed(at=2e6), step(after, TimePassed(at=2e6), LifecycleRules())[0]
    ) in (
        "",
        "start-stall",
    )
