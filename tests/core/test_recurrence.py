"""A recurring failure eventually takes a rung; a failure of another kind does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.config.schema import WatchSection
from caovand.core.healing.failure import Failure, Finding
from caovand.core.healing.ladder import KILL_PATIENCE, REACTIONS, Decision, LadderRules, decide
from caovand.core.lifecycle.events import (
    Failed,
    Gone,
    Planned,
    Proven,
    Restart,
    Start,
    TimePassed,
)
from caovand.core.lifecycle.recurrence import RECALL_S, Recurrence
from caovand.core.lifecycle.state import LifecycleRules, Snapshot, State
from caovand.core.lifecycle.transitions import step
from caovand.core.plan import Plan, Setting
from caovand.engines.vllm.healing.cures import HEALING

PLAN = Plan("m", {}, {})
ILLEGAL = Finding("illegal-access", "an illegal memory access", "serving")
HANG = Finding("hang", "nothing moves", "serving")


def failures(*parts: tuple[str, float]) -> int:
    seen = Recurrence()
    for failure, at in parts:
        seen = seen.after(failure, "plan", at)
    return seen.count


def test_one_failure_of_one_plan_is_counted_while_it_comes_back_soon() -> None:
    assert failures(("hang", 0.0), ("hang", RECALL_S), ("hang", 2 * RECALL_S)) == 3
    assert failures(("hang", 0.0), ("hang", RECALL_S + 1)) == 1
    assert failures(("hang", 0.0), ("illegal-access", 1.0)) == 1
    assert failures(("hang", 0.0), ("illegal-access", 1.0), ("hang", 2.0)) == 2
    assert Recurrence().after("hang", "a", 0.0).after("hang", "b", 1.0).count == 1


class Judge:
    """Notes how often it was told the failure has come."""

    def __init__(self) -> None:
        self.repeats: list[int] = []

    def __call__(self, plan: Plan, finding: Finding, repeats: int) -> Decision:
        self.repeats.append(repeats)
        return Decision("again")


def served_until(s: Snapshot, at: float, finding: Finding, rules: LifecycleRules) -> Snapshot:
    """Serving stably since long, then this failure."""
    living = replace(s, state=State.SERVING, plan=PLAN, spawned=True, deadline=at - 1)
    stable, _ = step(living, TimePassed(at=at), rules)
    assert stable.failures == 0
    failed, _ = step(stable, Failed(at=at, generation=stable.generation, finding=finding), rules)
    return failed


def test_stable_serving_in_between_does_not_hide_it_from_the_ladder() -> None:
    judge = Judge()
    rules = LifecycleRules(judge=judge)
    s = Snapshot()
    for hour in range(3):
        s = served_until(s, 3600.0 * (hour + 1), ILLEGAL, rules)
        assert s.failures == 1, "waits are short, and nothing is given up"
    served_until(s, 3600.0 * 4, HANG, rules)
    assert judge.repeats == [1, 2, 3, 1]


def test_the_operator_forgets_it() -> None:
    judge = Judge()
    rules = LifecycleRules(judge=judge)
    s = served_until(Snapshot(), 3600.0, ILLEGAL, rules)
    s, _ = step(replace(s, state=State.SERVING), Restart(at=3700.0), rules)
    served_until(s, 7200.0, ILLEGAL, rules)
    assert judge.repeats == [1, 1]


def test_a_start_asked_for_while_the_engine_is_being_stopped_forgets_it_too() -> None:
    s = served_until(Snapshot(), 3600.0, ILLEGAL, LifecycleRules(judge=Judge()))
    s, _ = step(replace(s, state=State.STOPPING), Start(at=3700.0), LifecycleRules())
    assert s.recurrence == Recurrence()


# -- in a row -------------------------------------------------------------------------------

DRAFTING = {"method": "mtp", "num_speculative_tokens": 3}
FULL = Plan("m", {"speculative_config": Setting(DRAFTING, "policy", "")}, {}, device="sm75")
KILLED = Finding("engine-died", "killed by signal 9")
WORKER_KILLED = Finding("engine-died", "died", captures={"silent": "yes"}, signature="worker.died")
SEGFAULT = Finding("engine-died", "Segfault encountered", signature="signal.fatal")
BUSY = Finding("vram-busy", "others have it", "engine", signature="vram.busy")
NO_DISK = Finding("unknown", "no space", signature="disk.full")
UNKNOWN = Finding("unknown", "what is this", signature="exception")
NO_HUB = Finding("network", "no way to the hub", "resolve", signature="hub.network")
LOST = Finding("gpu-lost", "fell off the bus", signature="gpu.lost")
HUNG = Finding("hang", "nothing moves")


class Life:
    """A machine with the real ladder; its engine serves for a moment between two failures."""

    def __init__(self, failures: int = 5) -> None:
        rules = LadderRules(HEALING)
        self.rules = LifecycleRules(
            WatchSection(failures=failures),
            judge=lambda plan, finding, n: decide(plan, finding, n, rules),
        )
        self.at = 0.0
        self.s = self.after(Start(at=0.0))
        self.serve(FULL)

    def after(self, event: object, s: Snapshot | None = None) -> Snapshot:
        self.s, _ = step(s or getattr(self, "s", Snapshot()), event, self.rules)  # type: ignore[arg-type]
        return self.s

    def serve(self, plan: Plan) -> None:
        self.after(Planned(at=self.at, inspection=self.s.inspection, plan=plan))
        self.after(Proven(at=self.at, generation=self.s.generation))
        assert self.s.state is State.SERVING

    def fail(self, finding: Finding) -> Decision:
        """What is decided; unless that is to give up, the engine serves again."""
        self.at += 30.0
        self.after(Failed(at=self.at, generation=self.s.generation, finding=finding))
        remedy, ending = self.s.remedy, self.s.ending
        assert remedy is not None
        assert ending is not None
        self.after(Gone(at=self.at, generation=self.s.generation))
        if self.s.deadline is not None:
            assert ending.next_plan is not None
            self.at = max(self.at, self.s.deadline)
            self.after(TimePassed(at=self.at))
            self.serve(ending.next_plan)
        return remedy


@pytest.mark.parametrize("kill", [KILLED, WORKER_KILLED])
def test_a_kill_from_outside_uses_up_no_patience_with_the_next_fault(kill: Finding) -> None:
    life = Life()
    assert life.fail(kill).verdict == "again"
    assert life.fail(HUNG).verdict == "again"
    assert life.s.plan is not None
    assert life.s.plan.mtp == 3
    assert life.fail(HUNG).rung == "piecewise"


def test_nor_does_what_is_waited_for() -> None:
    life = Life()
    for finding in (BUSY, LOST, NO_HUB, BUSY, HUNG, NO_DISK, NO_DISK, NO_DISK, UNKNOWN):
        assert life.fail(finding).verdict in ("again", "hold"), finding.signature


def test_a_crash_that_says_why_is_not_counted_with_kills() -> None:
    life = Life()
    for finding in (KILLED, KILLED, SEGFAULT, KILLED):
        assert life.fail(finding).verdict == "again"
    assert life.fail(SEGFAULT).verdict == "degrade"


def test_in_a_row_no_failure_is_too_long_ago() -> None:
    """Slow boots and fast crashes are treated alike, as long as nothing served stably."""
    judge = Judge()
    s = replace(Snapshot(), state=State.SERVING, plan=PLAN, spawned=True)
    for day in range(3):
        s = replace(s, state=State.SERVING, spawned=True)
        s, _ = step(
            s,
            Failed(at=day * 86400.0, generation=s.generation, finding=HANG),
            LifecycleRules(judge=judge),
        )
    assert judge.repeats == [1, 2, 3]


def patience(finding: Finding) -> int:
    """How often the same plan is tried again after such failures."""
    return REACTIONS[finding.failure].patience + (KILL_PATIENCE if finding.kind == "killed" else 0)


PATIENT: tuple[Failure, ...] = ("hang", "illegal-access", "engine-died", "collective-timeout")
ANY_FAILURE = st.sampled_from(
    [KILLED, WORKER_KILLED, BUSY, LOST, NO_HUB, NO_DISK]
    + [Finding(failure, "said so", signature="a.row") for failure in PATIENT]
)


@given(st.lists(ANY_FAILURE, max_size=12))
def test_a_step_is_taken_only_for_what_came_more_often_than_there_is_patience(
    findings: list[Finding],
) -> None:
    """Whatever else came in between."""
    life, met = Life(failures=1000), dict.fromkeys(("",), 0)
    for finding in findings:
        met[finding.kind] = met.get(finding.kind, 0) + 1
        plan = life.s.plan
        if life.fail(finding).verdict == "degrade":
            assert met[finding.kind] > patience(finding)
        if life.s.plan != plan:
            met = {}
