"""A failure that comes back after each long serving takes a step of the ladder in the end."""

from __future__ import annotations

from dataclasses import replace

from caovand.core.events import Failed, Restart, Start, Tick
from caovand.core.failure import Finding
from caovand.core.ladder import Decision
from caovand.core.machine import Rules, Snapshot, State, step
from caovand.core.plan import Plan
from caovand.core.recurrence import RECALL_S, Recurrence

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
    assert Recurrence().after("hang", "a", 0.0).after("hang", "b", 1.0).count == 1


class Judge:
    """Notes how often it was told the failure has come."""

    def __init__(self) -> None:
        self.repeats: list[int] = []

    def __call__(self, plan: Plan, finding: Finding, repeats: int) -> Decision:
        self.repeats.append(repeats)
        return Decision("again")


def served_until(s: Snapshot, at: float, finding: Finding, rules: Rules) -> Snapshot:
    """Serving stably since long, then this failure."""
    living = replace(s, state=State.SERVING, plan=PLAN, spawned=True, deadline=at - 1)
    stable, _ = step(living, Tick(at, 0.5), rules)
    assert stable.failures == 0
    failed, _ = step(stable, Failed(at, 0.5, stable.generation, finding), rules)
    return failed


def test_stable_serving_in_between_does_not_hide_it_from_the_ladder() -> None:
    judge = Judge()
    rules = Rules(judge=judge)
    s = Snapshot()
    for hour in range(3):
        s = served_until(s, 3600.0 * (hour + 1), ILLEGAL, rules)
        assert s.failures == 1, "waits are short, and nothing is given up"
    served_until(s, 3600.0 * 4, HANG, rules)
    assert judge.repeats == [1, 2, 3, 1]


def test_the_operator_forgets_it() -> None:
    judge = Judge()
    rules = Rules(judge=judge)
    s = served_until(Snapshot(), 3600.0, ILLEGAL, rules)
    s, _ = step(replace(s, state=State.SERVING), Restart(3700.0), rules)
    served_until(s, 7200.0, ILLEGAL, rules)
    assert judge.repeats == [1, 1]


def test_a_start_asked_for_while_the_engine_is_being_stopped_forgets_it_too() -> None:
    s = served_until(Snapshot(), 3600.0, ILLEGAL, Rules(judge=Judge()))
    s, _ = step(replace(s, state=State.STOPPING), Start(3700.0), Rules())
    assert s.recurrence == Recurrence()
