"""100,000 short histories of machine and ladder together, the same ones in every run.

20,000 of them are in every `make test`, the others are a long test.

A world that does what the actions ask, or fails at it with any failure in any phase; the judge is
the ladder over plans as they are. Histories are short, so that most of them are beginnings: a walk
of thousands of events is soon in the same few states again.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from caovand.core.healing.failure import FAILURES, Finding
from caovand.core.healing.ladder import LadderRules, decide
from caovand.core.lifecycle.backoff import delay
from caovand.core.lifecycle.events import (
    EndChild,
    Exited,
    Failed,
    Gone,
    Inspect,
    LifecycleEvent,
    Planned,
    Proven,
    Reconfigured,
    Restart,
    Spawn,
    Start,
    StartRefused,
    Stop,
    TimePassed,
    Unkillable,
)
from caovand.core.lifecycle.state import Judge, LifecycleRules, Snapshot, State
from caovand.core.lifecycle.transitions import step
from caovand.core.plan import Plan
from caovand.engines.vllm.healing.cures import HEALING
from tests.core.test_ladder import plan_of

WALKS = 2000  # in each part
SHORT, PARTS = 1, 50
EVENTS = 30
OPERATOR = (Start, Restart, Reconfigured, Stop)
PLANS = (
    plan_of(),
    plan_of({"kv_cache_dtype": "auto", "speculative_config": None}, device="sm90"),
    plan_of({"kv_cache_memory_bytes": 1 << 30, "additional_config": None}, device="cpu"),
    plan_of(verbatim=("speculative_config", "max_model_len", "compilation_config")),
)
LADDERS = (
    LadderRules(HEALING),
    LadderRules(HEALING, strict=True),
    LadderRules(HEALING, pinned=frozenset({"mtp", "max_model_len"})),
)
PHASES = ("load", "kv", "capture", "serving")
CAPTURES: tuple[dict[str, str], ...] = (
    {},
    {"fits": "30000", "len": "262144"},
    {"free": "9", "total": "22", "need": "9"},
)
FINDINGS = tuple(
    Finding(failure, "said so", phase, captures, signature)
    for failure in FAILURES
    for phase in PHASES
    for captures in CAPTURES
    for signature in ("a.row", "")
)
BUSY = Finding("port-busy", "somebody listens")


def judge_by(ladder: LadderRules) -> Judge:
    return lambda plan, finding, repeats: decide(plan, finding, repeats, ladder)


@dataclass
class Walk:
    """One short history, with its promises."""

    draw: random.Random
    s: Snapshot = field(default_factory=Snapshot)
    at: float = 0.0
    alive: bool = False
    ending: bool = False
    looks: Inspect | None = None
    left_at: float = 0.0
    last: str = ""
    alone: bool = False
    """Whether the operator has done nothing since the last child was started."""

    abandoned: str = ""
    """What failed in place of a plan that served, until the operator does something."""

    def __post_init__(self) -> None:
        self.plan = self.draw.choice(PLANS)
        ladder = self.draw.choice(LADDERS)
        # What goes wrong goes wrong again, as a rule.
        self.findings = self.draw.choices(FINDINGS, k=self.draw.choice((1, 1, 2, 4)))
        self.rules = LifecycleRules(judge=judge_by(ladder))
        self.apply(Start(at=0.0))

    def apply(self, event: LifecycleEvent) -> None:
        before = self.s
        self.s, actions = step(before, event, self.rules)
        self.alone &= not isinstance(event, OPERATOR)
        if isinstance(event, OPERATOR):
            self.abandoned = ""
            # A changed file, which may be what goes wrong.
            self.plan = self.draw.choice((self.plan, *PLANS))
        elif self.s.abandoned != before.abandoned:
            self.abandoned = self.s.abandoned
        if before.state in (State.STARTING, State.SERVING) and self.s.state is State.RECYCLING:
            self.left_at = self.at
        for action in actions:
            if isinstance(action, Inspect):
                self.looks = action
            elif isinstance(action, EndChild):
                self.ending = True
            elif isinstance(action, Spawn):
                self.spawned(action.plan)
        if self.s.state in (State.BACKOFF, State.FAILED):
            assert not self.alive
        if self.s.state not in (State.STOPPED, State.SERVING, State.FAILED):
            assert self.s.deadline is not None, "a state that nobody leaves must leave by itself"

    def spawned(self, plan: Plan) -> None:
        assert not self.alive, "two children at once"
        assert not self.ending, "a child while the one before is being ended"
        assert len(set(plan.rungs)) == len(plan.rungs), "a rung twice in one descent"
        assert plan.identity not in plan.tried, "a plan that failed already in this descent"
        assert plan.identity != self.abandoned, "a plan that was given up, by itself"
        if self.alone:
            # A lowered plan begins a new count; the same one waits as often as it failed.
            same = plan.identity == self.last
            least = delay(max(self.s.failures, 1) if same else 1, 0.0)
            assert self.at - self.left_at >= least, "a restart storm"
        self.alive, self.alone, self.last = True, True, plan.identity

    def live(self) -> State:
        """Let some time pass and one thing happen."""
        self.at += self.draw.choice((0.0, 0.5, 5.0, 20.0, 400.0))
        event = self.next_event()
        self.at = event.at
        if isinstance(event, (Planned, StartRefused)):
            self.looks = None
        if isinstance(event, (Gone, Unkillable)):
            self.alive = self.ending = False
        self.apply(event)
        if self.s.state in (State.HOLD, State.STOPPED):
            self.alive = self.ending = False
        return self.s.state

    def next_event(self) -> LifecycleEvent:
        s, at, chance = self.s, self.at, self.draw.random()
        now: dict[str, Any] = {"at": at, "chance": chance}
        child: dict[str, Any] = {**now, "generation": s.generation}
        if chance < 0.03:
            return self.draw.choice(OPERATOR)(**now)
        if self.ending:
            if chance < 0.1:
                return Unkillable(**child, finding=BUSY)
            return Gone(**child) if chance < 0.9 else TimePassed(**now)
        if self.looks is not None:
            number, given = self.looks.number, self.looks.plan
            if chance < 0.1:
                return StartRefused(**now, inspection=number, finding=BUSY, hold=chance < 0.08)
            return Planned(**now, inspection=number, plan=given or self.plan)
        if self.alive:
            if chance < 0.3:
                return Proven(**child)
            kind = Failed if chance < 0.6 else Exited
            return kind(**child, finding=self.draw.choice(self.findings))
        return TimePassed(at=max(at, s.deadline or 0.0) if chance < 0.5 else at, chance=chance)


@pytest.mark.parametrize(
    "part",
    [
        *range(SHORT),
        *[pytest.param(part, marks=pytest.mark.long) for part in range(SHORT, PARTS)],
    ],
)
def test_short_histories_keep_every_promise(part: int) -> None:
    entered: Counter[State] = Counter()
    left: Counter[State] = Counter()
    rungs: set[str] = set()
    for number in range(WALKS):
        walk = Walk(random.Random(part * WALKS + number))
        before = walk.s.state
        for _ in range(EVENTS):
            now = walk.live()
            if now is not before:
                entered[now] += 1
                left[before] += 1
            before = now
        rungs |= {rung.partition(" ")[0] for rung in walk.s.plan.rungs} if walk.s.plan else set()
    assert set(State) == set(entered) == set(left)
    assert len(rungs) > 15


@pytest.mark.parametrize("seed", range(40))
def test_the_ladder_of_one_history_ends(seed: int) -> None:
    """Where every start fails, nothing is started any more, or ever more rarely."""
    draw = random.Random(seed)
    ladder, found = draw.choice(LADDERS), draw.choices(FINDINGS, k=3)
    rules = LifecycleRules(judge=judge_by(ladder))
    s, at, looks, spawns = Snapshot(), 0.0, Inspect(0, None), []
    event: LifecycleEvent = Start(at=0.0)
    while at < 1e5 and s.state is not State.FAILED:
        s, actions = step(s, event, rules)
        for action in actions:
            if isinstance(action, Inspect):
                looks = action
            elif isinstance(action, Spawn):
                spawns.append(at)
        if s.spawned and s.state is State.STARTING:
            event = Exited(at=at, generation=s.generation, finding=found[s.spawns % len(found)])
        elif s.state is State.RECYCLING:
            event = Gone(at=at, generation=s.generation)
        elif s.state is State.STARTING or s.rechecking:
            event = Planned(
                at=at, inspection=looks.number, plan=looks.plan or PLANS[seed % len(PLANS)]
            )
        else:
            at = max(at, s.deadline or 0.0)
            event = TimePassed(at=at)
    waits = [later - earlier for earlier, later in pairwise(spawns)]
    assert s.state is State.FAILED or min(waits[-5:]) >= 270.0
