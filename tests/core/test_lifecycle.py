"""The state machine, thrown about at random: 100,000 events, the same ones in every run.

Two kinds of walk. A hostile one throws any event at any time: nothing may raise, and nothing may
enter a state that EDGES does not declare. A plausible one has a world that does what the actions
ask (or fails at it): there the promises hold that people rely on.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import pytest

from caovand.core.config.schema import WatchSection
from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import Decision
from caovand.core.lifecycle.backoff import delay
from caovand.core.lifecycle.ending import DRAIN_MARGIN_S, KILL_S
from caovand.core.lifecycle.events import (
    Action,
    ChildEvent,
    EndChild,
    Exited,
    Failed,
    Gone,
    Inspect,
    InspectionEvent,
    LifecycleEvent,
    Planned,
    Progressed,
    Proven,
    Quit,
    Reconfigured,
    Restart,
    Spawn,
    Start,
    StartRefused,
    Stop,
    TimePassed,
    Unkillable,
)
from caovand.core.lifecycle.state import Ending, LifecycleRules, Snapshot, State
from caovand.core.lifecycle.transitions import EDGES, step
from caovand.core.plan import Plan, Taken

PLANS = [Plan(name, {}, {}) for name in "ABC"]
OOM = Finding("device-oom-load", "no memory")
BUSY = Finding("port-busy", "somebody listens")
OPERATOR = (Start, Restart, Reconfigured, Stop)


def judge(plan: Plan, finding: Finding, repeats: int) -> Decision:
    """Lower A to B after an out-of-memory, wait for a lost card, give up on bad arguments."""
    if finding.failure == "device-oom-load" and plan.model == "A":
        return Decision("degrade", PLANS[1])
    if finding.failure == "gpu-lost":
        return Decision("hold", excused=True)
    if finding.failure == "network":
        return Decision("again", excused=True)
    return Decision("fail" if finding.failure == "bad-arguments" else "again")


RULES = LifecycleRules(
    WatchSection(failures=3, stall_s=60, stable_after_s=100, shutdown_timeout_s=10), judge=judge
)
FINDINGS = [
    OOM,
    Finding("gpu-lost", "fell off the bus"),
    Finding("network", "no way to the hub"),
    Finding("bad-arguments", "no such flag"),
    *[Finding("engine-died", "exit status 1")] * 5,
]


# -- hostile: any event at any time ---


def any_event(draw: random.Random, s: Snapshot, at: float) -> LifecycleEvent:
    """An event of any kind, mostly of the present child or inspection, sometimes of another."""
    generation = s.generation + draw.choice((0, 0, 0, 0, -1, 1))
    inspection = s.inspection + draw.choice((0, 0, 0, 0, -1, 1))
    finding = draw.choice(FINDINGS)
    now: dict[str, Any] = {"at": at, "chance": draw.random()}
    child: dict[str, Any] = {**now, "generation": generation}
    answer: dict[str, Any] = {**now, "inspection": inspection}
    makers: list[Callable[[], LifecycleEvent]] = [
        lambda: Start(**now),
        lambda: Restart(**now),
        lambda: Reconfigured(**now, changed=draw.random() < 0.5),
        lambda: Stop(**now, quit=draw.random() < 0.1),
        lambda: TimePassed(**now),
        lambda: TimePassed(at=max(at, s.deadline or 0)),
        lambda: Planned(**answer, plan=draw.choice(PLANS)),
        lambda: Planned(**answer, plan=s.plan or PLANS[0]),
        lambda: StartRefused(**answer, finding=BUSY, hold=draw.random() < 0.5),
        lambda: Progressed(**child, phase="load", progress=0.5, heartbeat=draw.random() < 0.5),
        # Only a child can prove itself; everything else may be reported of one that never was.
        lambda: Proven(**(child if s.spawned else {**child, "generation": -1})),
        lambda: Failed(**child, finding=finding),
        lambda: Exited(**child, finding=finding),
        lambda: Gone(**child),
        lambda: Unkillable(**child, finding=finding),
    ]
    return draw.choice(makers)()


def hostile_walk(seed: int, events: int) -> Iterator[tuple[Snapshot, LifecycleEvent, Snapshot]]:
    draw, s, at = random.Random(seed), Snapshot(), 0.0
    for _ in range(events):
        at += draw.choice((0.0, 0.1, 1.0, 20.0, 200.0))
        event = any_event(draw, s, at)
        after, _ = step(s, event, RULES)
        yield s, event, after
        at, s = max(at, event.at), after


def test_what_edges_declares_is_exactly_what_is_reached() -> None:
    reached: defaultdict[tuple[State, type[LifecycleEvent]], set[State]] = defaultdict(set)
    for seed in range(40):
        for before, event, after in hostile_walk(seed, 2000):
            if after is not before:
                reached[before.state, type(event)].add(after.state)
            elif (before.state, type(event)) in EDGES:
                # Not moving is staying: a row may declare its own state for that.
                reached[before.state, type(event)].update(
                    EDGES[before.state, type(event)][1] & {before.state}
                )
    assert dict(reached) == {edge: set(targets) for edge, (_, targets) in EDGES.items()}


def test_a_pair_without_a_row_changes_nothing() -> None:
    for before, event, after in hostile_walk(100, 5000):
        if (before.state, type(event)) not in EDGES:
            assert after is before


def test_every_state_is_left_by_some_event() -> None:
    """With the test above this is proven, not only declared."""
    for state in State:
        targets: set[State] = set()
        for (source, _), (_, declared) in EDGES.items():
            targets |= declared if source is state else set()
        assert targets - {state}, state


def test_events_of_another_child_or_inspection_are_dropped() -> None:
    seen = 0
    for before, event, after in hostile_walk(200, 5000):
        other_child = isinstance(event, ChildEvent) and event.generation != before.generation
        other_look = isinstance(event, InspectionEvent) and event.inspection != before.inspection
        if other_child or other_look:
            seen += 1
            assert after is before
    assert seen > 300


def test_a_tick_before_the_deadline_changes_nothing() -> None:
    for before, event, after in hostile_walk(300, 5000):
        if isinstance(event, TimePassed) and (
            before.deadline is None or event.at < before.deadline
        ):
            assert after is before


def test_a_snapshot_carries_only_what_belongs_to_its_state() -> None:
    """One event too late or too early must not leave half of another state behind."""
    lives = {State.STARTING, State.SERVING, State.RECYCLING, State.STOPPING}
    for seed in range(400, 410):
        for _, event, s in hostile_walk(seed, 2000):
            ending = s.ending.state if s.ending else None
            assert ending is (s.state if s.state in (State.RECYCLING, State.STOPPING) else None)
            assert not s.spawned or s.state in lives, event
            assert s.spawned or s.state is not State.SERVING, event
            assert not s.inspecting or s.state in (State.STARTING, State.SERVING, State.HOLD), event
            assert not s.phase or s.state is State.STARTING, event
            assert not s.next_plan or s.state not in (State.SERVING, State.RECYCLING), event
            settled = (State.SERVING, State.FAILED, State.STOPPING, State.STOPPED)
            assert s.fallback is None or s.state not in settled, event
            assert s.refusal is not None or not s.abandoned, event


@pytest.mark.parametrize("kind", sorted({kind for _, kind in EDGES}, key=str))
def test_an_event_is_made_by_keywords_and_lacks_nothing(kind: type[LifecycleEvent]) -> None:
    """A finding or plan that may be missing would have to be checked in each handler."""
    for part in fields(kind):
        assert part.kw_only, part.name
        assert part.default is not None or part.name == "progress"


# -- plausible: a world that does what it is asked ---


@dataclass
class World:
    """One machine with its snapshot; it notes what it sees and asserts what must never be."""

    draw: random.Random
    rules: LifecycleRules
    s: Snapshot = field(default_factory=Snapshot)
    at: float = 0.0
    alive: int | None = None
    ending: bool = False
    orphans: bool = False
    inspects: Inspect | None = None
    ended: bool = False
    left_at: float = 0.0
    last_plan: str = ""
    untouched: bool = False
    abandoned: str = ""
    """What failed in place of a plan that served, until the operator does something."""
    spawns: int = 0

    def apply(self, event: LifecycleEvent) -> tuple[Action, ...]:
        """Let the machine take an event, check every promise, take note of the actions."""
        before = self.s
        self.s, actions = step(before, event, self.rules)
        self.untouched &= not isinstance(event, OPERATOR)
        if isinstance(event, OPERATOR):
            self.abandoned = ""
        elif self.s.abandoned != before.abandoned:
            self.abandoned = self.s.abandoned
        if before.state in (State.STARTING, State.SERVING) and self.s.state is State.RECYCLING:
            self.left_at = self.at
        for action in actions:
            self.note(action)
        alive = self.alive is not None
        gave_up = self.s.state in (State.HOLD, State.STOPPED)
        assert self.s.spawned == alive or (gave_up and not self.s.spawned)
        if self.s.state in (State.BACKOFF, State.FAILED):
            assert not alive
        if self.s.state is State.SERVING:
            assert alive
            assert not self.ending
        if self.s.state not in (State.STOPPED, State.SERVING, State.FAILED):
            assert self.s.deadline is not None, "a state that nobody leaves must leave by itself"
        return actions

    def note(self, action: Action) -> None:
        if isinstance(action, Inspect):
            self.inspects = action
        elif isinstance(action, Spawn):
            self.spawned(action)
        elif isinstance(action, EndChild):
            assert action.generation == self.s.generation
            self.ending = True
        elif isinstance(action, Quit):
            self.ended = True

    def spawned(self, action: Spawn) -> None:
        assert self.alive is None, "two children at once"
        assert not self.orphans, "a child beside what an earlier one left"
        assert not self.ending, "a child while the one before is being ended"
        assert action.generation == self.s.generation
        assert self.s.state is State.STARTING
        assert action.plan.identity != self.abandoned, "a plan that was given up, by itself"
        again = self.untouched and action.plan.identity == self.last_plan
        if again:
            least = delay(max(self.s.failures, 1), 0.0)
            assert self.at - self.left_at >= least, "a restart storm"
        self.alive, self.last_plan, self.untouched = action.generation, action.plan.identity, True
        self.spawns += 1

    def next_event(self) -> LifecycleEvent:
        """Something that could happen now."""
        draw, s = self.draw, self.s
        now: dict[str, Any] = {"at": self.at, "chance": draw.random()}
        possible: list[LifecycleEvent] = [TimePassed(**now)] * 3
        if draw.random() < 0.15:
            possible += [draw.choice(OPERATOR)(**now)]
        if self.inspects is not None and not self.orphans:
            number, given = self.inspects.number, self.inspects.plan
            plan = given or draw.choice((s.plan or PLANS[0], PLANS[0], PLANS[0], PLANS[2]))
            possible += [Planned(**now, inspection=number, plan=plan)] * 4
        if self.inspects is not None:
            # An inspection that finds processes of an earlier child asks to wait for them.
            hold = self.orphans or draw.random() < 0.7
            number = self.inspects.number
            possible += [StartRefused(**now, inspection=number, finding=BUSY, hold=hold)]
        if self.ending:
            gone: list[LifecycleEvent] = [Gone(**now, generation=s.generation)] * 6
            left = Unkillable(**now, generation=s.generation, finding=OOM)
            possible += [*gone, left]
        if self.alive is not None and not self.ending:
            child: dict[str, Any] = {**now, "generation": self.alive}
            finding = draw.choice(FINDINGS)
            possible += [
                Progressed(**child, phase=draw.choice("ab")),
                Proven(**child),
                Failed(**child, finding=finding),
                Exited(**child, finding=finding),
            ]
        return draw.choice(possible)

    def live(self) -> None:
        """Let some time pass and one thing happen."""
        self.at += self.draw.choice((0.0, 0.01, 0.5, 5.0, 20.0, 120.0))
        event = self.next_event()
        if isinstance(event, InspectionEvent):
            self.inspects = None
        if isinstance(event, Gone):
            self.alive, self.ending = None, False
        if isinstance(event, Unkillable):
            self.ending = False
        self.apply(event)
        if self.s.state in (State.HOLD, State.STOPPED):
            # Given up: the processes go when they go, and inspections wait for that.
            self.orphans |= self.alive is not None
            self.alive, self.ending = None, False
        self.orphans &= self.draw.random() < 0.8


@pytest.mark.parametrize("seed", range(20))
def test_in_a_plausible_world_every_promise_holds(seed: int) -> None:
    world = World(random.Random(seed), RULES)
    visited = set()
    for _ in range(2000):
        world.live()
        visited.add(world.s.state)
    assert set(State) - {State.STOPPING} <= visited
    assert world.spawns > 20


@pytest.mark.parametrize("seed", range(5))
def test_a_stop_always_ends_in_stopped(seed: int) -> None:
    world = World(random.Random(1000 + seed), RULES)
    for _ in range(1000):
        world.live()
        for quitting in (False, True):
            s, actions = step(world.s, Stop(at=world.at, quit=quitting), RULES)
            if s.state is State.STOPPING:
                ends = [end for end in actions if isinstance(end, EndChild)]
                assert ends
                assert ends[0].generation == s.generation
                gone, last = step(s, Gone(at=world.at, generation=s.generation), RULES)
                left, _ = step(
                    s, Unkillable(at=world.at, generation=s.generation, finding=OOM), RULES
                )
                assert s.deadline is not None
                longest_s = RULES.watch.shutdown_timeout_s + DRAIN_MARGIN_S + KILL_S
                assert s.deadline - world.at <= longest_s + 1e-6
                overdue, _ = step(s, TimePassed(at=s.deadline), RULES)
                assert gone.state is left.state is overdue.state is State.STOPPED
            else:
                gone, last = s, actions
                assert s.state is State.STOPPED
            assert (Quit() in last) == quitting
            assert not gone.spawned


@pytest.mark.parametrize("seed", range(5))
def test_from_anywhere_a_start_in_a_healthy_world_ends_in_serving(seed: int) -> None:
    world = World(random.Random(2000 + seed), RULES)
    for _ in range(1000):
        world.live()
        s, at = world.s, world.at
        looking = world.inspects.number if world.inspects else None
        event: LifecycleEvent = Start(at=at)
        for _ in range(12):
            s, actions = step(s, event, RULES)
            for action in actions:
                looking = action.number if isinstance(action, Inspect) else looking
            if s.state is State.SERVING:
                break
            if s.state is State.STOPPED:
                event = Start(at=at)
            elif s.state in (State.RECYCLING, State.STOPPING):
                event = Gone(at=at, generation=s.generation)
            elif s.state is State.STARTING and not s.spawned:
                assert looking is not None
                event = Planned(at=at, inspection=looking, plan=PLANS[0])
            elif s.state is State.STARTING:
                event = Proven(at=at, generation=s.generation)
            else:
                at = max(at, s.deadline or 0.0)
                event = TimePassed(at=at)
        assert s.state is State.SERVING


# -- counting failures ---


def after(s: Snapshot, *events: LifecycleEvent, rules: LifecycleRules | None = None) -> Snapshot:
    for event in events:
        s, _ = step(s, event, rules or LifecycleRules(WatchSection(failures=3)))
    return s


def serving(plan: Plan, s: Snapshot | None = None, at: float = 0.0) -> Snapshot:
    """A machine that has just begun to serve `plan`."""
    s = after(s or Snapshot(), Start(at=at)) if s is None or s.state is State.STOPPED else s
    s = after(s, Planned(at=at, inspection=s.inspection, plan=plan))
    return after(s, Proven(at=at, generation=s.generation))


def failed_once(s: Snapshot, at: float) -> Snapshot:
    """`s` after its child ended and the back-off passed; FAILED where that was once too often."""
    s = after(
        s,
        Exited(at=at, generation=s.generation, finding=FINDINGS[-1]),
        Gone(at=at, generation=s.generation),
    )
    return s if s.state is State.FAILED else after(s, TimePassed(at=s.deadline or 0.0))


def test_failures_of_one_plan_end_in_failed_after_the_budget() -> None:
    s, counts = serving(PLANS[0]), []
    for n in range(3):
        s = failed_once(s, 10.0 * n)
        counts.append(s.failures)
        if n < 2:
            s = serving(PLANS[0], s, 10.0 * n)
    assert counts == [1, 2, 3]
    assert s.state is State.FAILED
    assert s.reason == "exit status 1"


def again_and_again(finding: Finding, times: int) -> tuple[Snapshot, list[float]]:
    """A plan that fails at each start with `finding`, and how long it waited after each."""
    s, at, waits = after(Snapshot(), Start(at=0.0)), 0.0, []
    s = after(s, Planned(at=at, inspection=s.inspection, plan=PLANS[0]))
    for _ in range(times):
        s = after(s, Exited(at=at, generation=s.generation, finding=finding), rules=RULES)
        s = after(s, Gone(at=at, generation=s.generation), rules=RULES)
        if s.deadline is None:
            break
        waits.append(s.deadline - at)
        at = s.deadline
        s = after(s, TimePassed(at=at), rules=RULES)
        s = after(s, Planned(at=at, inspection=s.inspection, plan=PLANS[0]), rules=RULES)
    return s, waits


def test_what_only_an_engine_meets_is_met_ever_more_rarely() -> None:
    """An inspection sees the card with the bad memory; the engine dies of it at each start."""
    s, waits = again_and_again(Finding("gpu-lost", "uncorrectable ECC error"), 9)
    assert waits == [15.0, 30.0, 60.0, 120.0, 240.0, 300.0, 300.0, 300.0, 300.0]
    assert s.state is State.STARTING


def test_a_network_that_is_away_for_hours_ends_nothing() -> None:
    s, waits = again_and_again(Finding("network", "no way to the hub"), 20)
    assert (s.state, s.spawns) == (State.STARTING, 21)
    assert max(waits) == 300.0
    # And it took nothing of what the plan has for failures of its own.
    for n in range(3):
        assert s.state is not State.FAILED, n
        s = after(
            s,
            Exited(at=9e4, generation=s.generation, finding=FINDINGS[-1]),
            Gone(at=9e4, generation=s.generation),
        )
        if s.state is State.BACKOFF:
            s = after(s, TimePassed(at=s.deadline or 0.0))
            s = after(s, Planned(at=9e4, inspection=s.inspection, plan=PLANS[0]))
    assert s.state is State.FAILED


def test_another_plan_begins_a_new_count() -> None:
    s = failed_once(failed_once(serving(PLANS[0]), 0.0), 10.0)
    assert serving(PLANS[2], s).failures == 0


def test_short_serving_clears_nothing_and_stable_serving_everything() -> None:
    s = serving(PLANS[0], failed_once(serving(PLANS[0]), 0.0), at=100.0)
    assert s.deadline == 100.0 + WatchSection().stable_after_s
    assert after(s, TimePassed(at=s.deadline - 1)).failures == 1
    assert after(s, TimePassed(at=s.deadline)).failures == 0


def test_hours_between_failures_do_not_make_them_fewer() -> None:
    """Slow boots and fast crashes are treated alike."""
    s = serving(PLANS[0])
    for n in range(3):
        s = failed_once(s, 36000.0 * n)
        if s.state is State.STARTING:
            s = serving(PLANS[0], s, 36000.0 * n)
    assert s.state is State.FAILED


def test_exit_status_zero_while_serving_is_a_failure() -> None:
    s = serving(PLANS[0])
    s = after(
        s, Exited(at=1.0, generation=s.generation, finding=Finding("engine-died", "exit status 0"))
    )
    assert (s.state, s.failures) == (State.RECYCLING, 1)


def test_the_operator_forgets_failures() -> None:
    s = failed_once(serving(PLANS[0]), 0.0)
    for event in (Restart(at=1.0), Stop(at=1.0)):
        ended = after(s, event)
        restarted = after(ended, Gone(at=2.0, generation=ended.generation), Start(at=3.0))
        assert restarted.failures == 0


def test_reading_the_configuration_again_clears_no_count() -> None:
    """Only stable serving does: else a reload every minute would keep a broken plan starting."""
    s = serving(PLANS[0])
    s = after(
        s,
        Exited(at=1.0, generation=s.generation, finding=FINDINGS[-1]),
        Gone(at=1.0, generation=s.generation),
    )
    assert (s.state, s.failures) == (State.BACKOFF, 1)
    assert after(s, Reconfigured(at=1.1, changed=False)) is s
    tried = after(s, Reconfigured(at=1.1))
    assert (tried.state, tried.failures) == (State.STARTING, 1)
    assert after(tried, Planned(at=2.0, inspection=tried.inspection, plan=PLANS[0])).failures == 1
    assert after(tried, Planned(at=2.0, inspection=tried.inspection, plan=PLANS[1])).failures == 0


def test_a_failed_plan_that_is_tried_again_by_a_reload_has_one_attempt() -> None:
    s = serving(PLANS[0])
    for at in (1.0, 2.0, 3.0):
        s = failed_once(s, at)
        s = s if s.state is State.FAILED else serving(PLANS[0], s, at)
    assert s.state is State.FAILED
    assert s.remedy is not None
    assert s.remedy.text == "gave up: this plan failed 3 times in a row"
    s = serving(PLANS[0], after(s, Reconfigured(at=4.0, changed=False)), 5.0)
    assert failed_once(s, 6.0).state is State.FAILED


def test_a_reload_does_not_bring_back_what_was_being_given_up() -> None:
    s = serving(PLANS[0])
    s = after(s, Exited(at=1.0, generation=s.generation, finding=FINDINGS[-1]))
    assert s.state is State.RECYCLING
    assert after(s, Reconfigured(at=1.1, changed=False)) is s
    changed = after(s, Reconfigured(at=1.1))
    assert (changed.ending, changed.failures) == (Ending("start"), 1)


def test_a_refusal_has_no_remedy_of_the_failure_before() -> None:
    s = serving(PLANS[0])
    s = failed_once(s, 1.0)
    assert s.remedy is not None
    assert (
        after(s, StartRefused(at=2.0, inspection=s.inspection, finding=OOM, hold=False)).remedy
        is None
    )


# -- inspections ---


def test_an_inspection_may_take_longer_than_the_time_between_two_in_hold() -> None:
    """A slow probe would else be asked again before each answer, and never heard."""
    s = after(Snapshot(), Start(at=0.0))
    s = after(s, StartRefused(at=1.0, inspection=s.inspection, finding=BUSY, hold=True))
    assert s.state is State.HOLD
    s, (look,) = step(s, TimePassed(at=s.deadline or 0.0), RULES)
    assert isinstance(look, Inspect)
    later = 16.0 + 2 * RULES.watch.recheck_s
    s, actions = step(s, TimePassed(at=later), RULES)
    assert actions == ()
    assert s.rechecking
    assert not after(
        s, StartRefused(at=later, inspection=look.number, finding=BUSY, hold=True)
    ).rechecking
    assert (
        after(s, Planned(at=later, inspection=look.number, plan=PLANS[0])).state is State.STARTING
    )


def test_an_inspection_made_beside_a_child_is_late_once_that_child_is_ended() -> None:
    """It looked neither for orphans nor at the port, which that child had."""
    s = after(serving(PLANS[0]), Reconfigured(at=1.0))
    late = Planned(at=3.0, inspection=s.inspection, plan=PLANS[2])
    lost = Exited(at=2.0, generation=s.generation, finding=Finding("gpu-lost", "fell off the bus"))
    s = after(s, lost, Gone(at=2.5, generation=s.generation), rules=RULES)
    assert s.state is State.STARTING
    assert after(s, late) is s


def test_a_living_engine_goes_on_where_the_new_plan_is_refused() -> None:
    s = after(serving(PLANS[0]), Reconfigured(at=1.0))
    assert s.replanning
    s = after(s, StartRefused(at=2.0, inspection=s.inspection, finding=BUSY, hold=True))
    assert (s.state, s.replanning, s.refusal) == (State.SERVING, False, BUSY)


def test_a_new_plan_that_is_the_same_restarts_nothing() -> None:
    s = after(serving(PLANS[0]), Reconfigured(at=1.0))
    s, actions = step(s, Planned(at=2.0, inspection=s.inspection, plan=replace(PLANS[0])), RULES)
    assert (s.state, s.replanning, actions) == (State.SERVING, False, ())


def test_heartbeats_move_no_deadline_and_progress_does() -> None:
    s = after(Snapshot(), Start(at=0.0))
    s = after(s, Planned(at=1.0, inspection=s.inspection, plan=PLANS[0]))
    beat = Progressed(
        at=50.0,
        generation=s.generation,
        phase="load",
        progress=0.1,
        detail="waiting",
        heartbeat=True,
    )
    assert after(s, beat).deadline == s.deadline
    moved = after(s, replace(beat, heartbeat=False))
    assert moved.deadline == 50.0 + 1800.0
    assert after(moved, replace(beat, at=60.0)).deadline == moved.deadline


def test_a_refused_reload_is_no_news_once_its_engine_is_gone() -> None:
    s = after(serving(PLANS[0]), Reconfigured(at=1.0))
    s = after(s, StartRefused(at=2.0, inspection=s.inspection, finding=BUSY, hold=True))
    s = after(s, Restart(at=3.0), Gone(at=4.0, generation=s.generation))
    s = after(s, StartRefused(at=5.0, inspection=s.inspection, finding=BUSY, hold=True))
    assert (s.state, s.finding, s.refusal) == (State.HOLD, BUSY, None)


@pytest.mark.parametrize("by", ["operator", "plan"])
def test_what_served_is_not_gone_back_to_twice(by: Literal["operator", "plan"]) -> None:
    """Neither the plan before the change can be started: there is nothing left to try."""
    s = after(serving(PLANS[0]), Restart(at=3.0, by=by))
    s = after(s, Gone(at=4.0, generation=s.generation))
    s = after(s, StartRefused(at=5.0, inspection=s.inspection, finding=OOM, hold=False))
    assert (s.state, s.next_plan, s.refusal) == (State.STARTING, PLANS[0], OOM)
    s = after(s, StartRefused(at=6.0, inspection=s.inspection, finding=OOM, hold=False))
    assert (s.state, s.finding, s.fallback) == (State.FAILED, OOM, None)
    s = after(s, Start(at=7.0))
    assert (s.state, s.next_plan, s.refusal) == (State.STARTING, None, None)


def test_what_is_gone_back_to_waits_for_the_world_as_what_it_is() -> None:
    """It is planned by its own configuration, as long as the file's is refused."""
    s = after(serving(PLANS[0]), Restart(at=3.0))
    s = after(s, Gone(at=4.0, generation=s.generation))
    s = after(s, StartRefused(at=5.0, inspection=s.inspection, finding=OOM, hold=False))
    s = after(s, StartRefused(at=6.0, inspection=s.inspection, finding=BUSY, hold=True))
    assert (s.state, s.next_plan, s.refusal) == (State.HOLD, PLANS[0], OOM)


def test_a_restart_with_the_plan_that_served_has_nothing_to_go_back_to() -> None:
    s = after(serving(PLANS[0]), Restart(at=3.0))
    s = after(s, Gone(at=4.0, generation=s.generation))
    s = after(s, Planned(at=5.0, inspection=s.inspection, plan=PLANS[0]))
    s = after(s, Exited(at=6.0, generation=s.generation, finding=FINDINGS[-1]), rules=RULES)
    assert (s.refusal, s.fallback, s.abandoned) == (None, None, "")


@pytest.mark.parametrize("served", [True, False])
def test_a_step_that_costs_nothing_but_time_is_taken_before_the_way_back(served: bool) -> None:
    """As a fresh cache for compiled code is: the changed plan is what is wanted."""
    free = replace(PLANS[2], taken=(Taken("fresh-cache", degrades=False),))
    rules = replace(RULES, judge=lambda *_: Decision("degrade", free))
    s = serving(PLANS[0])
    s = after(s, Reconfigured(at=1.0))
    s = after(s, Planned(at=2.0, inspection=s.inspection, plan=PLANS[2]))
    s = after(s, Gone(at=3.0, generation=s.generation))
    s = after(s, Planned(at=4.0, inspection=s.inspection, plan=PLANS[2]))
    if served:
        s = after(s, Proven(at=5.0, generation=s.generation))
    s = after(s, Exited(at=6.0, generation=s.generation, finding=OOM), rules=rules)
    assert s.refusal is None
    assert s.fallback == (None if served else PLANS[0])
    s = after(s, Gone(at=7.0, generation=s.generation))
    assert s.next_plan == free


def test_a_step_back_that_the_judge_has_chosen_refuses_nothing() -> None:
    """The draft tuner's trial, and a failed `retry --full`, are nobody's changed file."""
    for back in (PLANS[0], None):
        rules = replace(RULES, judge=lambda *_, to=back: Decision("degrade", to))
        s = after(serving(PLANS[0]), Reconfigured(at=1.0))
        s = after(s, Planned(at=2.0, inspection=s.inspection, plan=PLANS[2]))
        s = after(s, Gone(at=3.0, generation=s.generation))
        s = after(s, Planned(at=4.0, inspection=s.inspection, plan=PLANS[2]))
        s = after(s, Exited(at=6.0, generation=s.generation, finding=OOM), rules=rules)
        assert (s.refusal, s.abandoned, s.ending) == (None, "", Ending("backoff", back))


@pytest.mark.parametrize(
    ("finding", "grace_s"),
    [
        (Finding("hang", "nothing moves"), 0.0),
        (Finding("illegal-access", "said by a process of an engine that hangs"), 0.0),
        (Finding("gpu-lost", "fell off the bus"), 0.0),
        (Finding("draft-collapse", "slow, and answers"), 12.0),
        (Finding("host-oom", "the kernel killed a process of it"), 12.0),
    ],
    ids=lambda value: getattr(value, "failure", ""),
)
def test_an_engine_that_will_finish_nothing_has_no_grace(finding: Finding, grace_s: float) -> None:
    rules = LifecycleRules()
    s = serving(PLANS[0])
    s, (end,) = step(s, Failed(at=1.0, generation=s.generation, finding=finding), rules)
    assert end == EndChild(s.generation, grace_s)
    assert s.deadline == 1.0 + grace_s + KILL_S


def test_processes_left_by_an_engine_that_ended_have_theirs() -> None:
    s = serving(PLANS[0])
    rules = LifecycleRules(gateway_drain_s=60.0)
    exited = Exited(at=1.0, generation=s.generation, finding=FINDINGS[-1])
    s, (end,) = step(s, exited, rules)
    assert end == EndChild(s.generation, 12.0), "it answers nobody any more"


def test_before_a_planned_end_the_gateway_s_answers_may_finish() -> None:
    rules = LifecycleRules(gateway_drain_s=600.0)
    s = serving(PLANS[0])
    slow = Failed(at=1.0, generation=s.generation, finding=Finding("draft-collapse", "slow"))
    for event in (Restart(at=1.0), Stop(at=1.0), slow):
        ended, (end,) = step(s, event, rules)
        assert end == EndChild(s.generation, 12.0, 600.0)
        assert ended.deadline == 1.0 + 600.0 + 12.0 + KILL_S
    hung = Failed(at=1.0, generation=s.generation, finding=Finding("hang", "nothing moves"))
    assert step(s, hung, rules)[1] == (EndChild(s.generation, 0.0),)
    # A stop meanwhile does not cut them off; a second one does.
    recycling, _ = step(s, Restart(at=1.0), rules)
    stopping, _ = step(recycling, Stop(at=2.0), rules)
    assert stopping.deadline == recycling.deadline
    _, (end,) = step(stopping, Stop(at=3.0), rules)
    assert (end.grace_s, end.drain_s) == (0.0, 0.0)


def test_an_inspection_that_hangs_names_what_it_was_doing() -> None:
    def stalled(detail: str) -> str:
        s = after(Snapshot(), Start(at=0.0), rules=RULES)
        told = {"phase": "plan", "detail": detail, "heartbeat": True}
        s = after(s, Progressed(at=1.0, generation=s.generation, **told), rules=RULES)
        s = after(s, TimePassed(at=s.deadline or 0.0), rules=RULES)
        assert s.state is State.HOLD
        return s.reason

    text = "cannot plan: inspecting the engine, the model and the host has not finished after 300 s"
    assert stalled("") == f"{text}; check for a hung disk or driver"
    assert stalled("connects to n2") == f"{text} (connects to n2)"
