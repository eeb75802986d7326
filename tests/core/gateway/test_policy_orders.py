"""Requests at the gateway in random orders of events: none is forgotten, starved or begun twice."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from caovand.core.gateway.events import (
    Arrived,
    Begun,
    Closing,
    Complete,
    Done,
    Effect,
    End,
    EngineState,
    Event,
    Faulted,
    Forward,
    Healthy,
    Left,
    Lost,
    Recall,
    Refuse,
    Release,
    Spent,
    Stage,
    Tick,
    Unsent,
)
from caovand.core.gateway.fair import Lane
from caovand.core.gateway.policy import CONFIRM_S
from caovand.core.gateway.requests import GatewayRules
from tests.core.gateway.test_policy import RULES, World
from tests.examples import examples

ORDERS = 10_000


class Shell(World):
    """Does what the effects ask, as the process does, and checks each promise."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: set[int] = set()  # at the engine, as far as the clients see
        self.begun: set[int] = set()
        self.answered: dict[int, str] = {}
        self.since: dict[int, float] = {}
        self.serves = False

    def take(self, make: Callable[..., Event], **more: Any) -> list[Effect]:
        policy = self.policy
        alone = policy._alone
        effects = super().take(make, **more)
        for effect in effects:
            self.follow(effect)
            joined = isinstance(effect, Forward) and alone not in (None, effect.number)
            assert not joined or policy._alone != alone, "a suspect is not alone"
        assert policy.at_engine + policy.waiting <= len(self.open), "none is counted twice"
        for number in self.open:
            assert policy.stage(number) is not None, f"{number} is forgotten"
        return effects

    def follow(self, effect: Effect) -> None:
        number = effect.number
        assert number not in self.answered, f"{effect} for one that has ended"
        if isinstance(effect, Forward):
            assert self.serves, "forwarded without an engine, or to one that drains"
            assert effect.generation == self.generation
            assert number not in self.begun, "begun twice"
            assert number not in self.sent, "forwarded twice"
            self.sent.add(number)
        elif isinstance(effect, Recall):
            assert number not in self.begun, "begun twice"
            self.sent.discard(number)
            self.since[number] = self.at
        elif isinstance(effect, Release):
            self.answer(number, "fault")
        elif isinstance(effect, Refuse):
            assert number not in self.begun
            self.answer(number, "refused")
        elif isinstance(effect, End):
            assert number in self.begun
            self.answer(number, "ended")

    def answer(self, number: int, how: str) -> None:
        self.answered[number] = how
        self.sent.discard(number)
        self.since.pop(number, None)

    @property
    def open(self) -> set[int]:
        return {n for n in range(1, self.last + 1) if n not in self.answered}

    def do(self, what: str, which: int) -> None:
        """One thing that may happen now; nothing where it may not."""
        sent = sorted(self.sent)
        number = sent[which % len(sent)] if sent else 0
        if what == "arrive":
            self.last += 1
            self.since[self.last] = self.at
            lane = Lane("abc"[which % 3], "background" if which % 3 else "interactive")
            refused = self.take(Arrived, number=self.last, size=which % 300, lane=lane)
            if not refused:
                self.take(Complete, number=self.last, digest=b"%d" % (which % 5))
        elif what == "wait":
            self.at += which % 12
            self.take(Tick)
            for number, since in self.since.items():
                waits = self.policy.stage(number) is Stage.WAITING
                assert not waits or self.at - since < RULES.hold_s, f"{number} starves"
        elif what == "engine":
            self.turn(list(EngineState)[which % 4], returns=which % 3 > 0)
        elif what == "leave" and self.open:
            number = sorted(self.open)[which % len(self.open)]
            self.answer(number, "left")
            self.take(Left, number=number)
        elif what == "healthy":
            self.take(Healthy)
        elif number and what == "begin":
            self.begun.add(number)
            self.since.pop(number, None)
            self.take(Begun, number=number)
        elif number and what == "done":
            self.answer(number, "done")
            self.take(Done, number=number)
        elif number and what == "lose":
            if number not in self.begun:
                self.sent.discard(number)
            self.take(Lost, number=number)
        elif number and what == "fault" and number in self.begun:
            self.sent.discard(number)  # nothing more comes of it
            self.take(Faulted, number=number)
        elif number and number not in self.begun and what in ("fault", "refuse"):
            self.sent.discard(number)
            self.since[number] = self.at
            self.take(Faulted if what == "fault" else Unsent, number=number)

    def turn(self, state: EngineState, *, returns: bool = True) -> None:
        self.serves = state is EngineState.SERVING
        self.engine(state, at_once=3, returns=returns)

    def finish(self) -> None:
        """An engine comes that answers all."""
        self.turn(EngineState.SERVING)
        for _ in range(200):
            for number in sorted(self.sent):
                self.answer(number, "done")
                self.take(Done, number=number)
            self.at += CONFIRM_S
            self.take(Tick)
            self.take(Healthy)


STEPS = (
    "arrive", "wait", "engine", "healthy", "leave", "begin", "done", "lose", "fault", "refuse",
)  # fmt: skip
orders = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 999)), max_size=60)


@examples(2000)
@given(orders, st.booleans())
@example([("arrive", 0), ("engine", 1), ("engine", 1), ("engine", 2)], False)  # alone, twice
def test_in_any_order_no_request_is_forgotten_starved_or_begun_twice(
    steps: list[tuple[str, int]], closes: bool
) -> None:
    live(steps, closes=closes)


@pytest.mark.long
def test_ten_thousand_random_orders_keep_the_same_promises() -> None:
    chance = random.Random(35)
    for number in range(ORDERS):
        steps = [(chance.choice(STEPS), chance.randrange(1000)) for _ in range(60)]
        live(steps, closes=number % 10 == 0)


def live(steps: list[tuple[str, int]], *, closes: bool) -> None:
    """Do these steps, then end the gateway, or let an engine answer what is left."""
    shell = Shell()
    for what, which in steps:
        shell.do(what, which)
    if closes:
        shell.take(Closing)
    else:
        shell.finish()
    assert shell.open == set(), "each has its answer, or its error"
    policy = shell.policy
    assert (policy.at_engine, policy.waiting, policy._bytes) == (0, 0, 0)
    assert not any(policy._queued_by_lane.values())


# -- fairness ---


class Busy(World):
    """Keys that always have requests waiting, at an engine that dies, drains and is slow at random.

    Every request costs what `chance` draws, whatever was estimated.
    """

    def __init__(self, keys: int, seed: int) -> None:
        super().__init__(GatewayRules(hold_s=1e9, max_waiting=1000))
        self.chance = random.Random(seed)
        self.used = {Lane(str(number)): 0 for number in range(keys)}
        self.lanes: dict[int, Lane] = {}
        self.sent: list[int] = []
        for lane in self.used:
            for _ in range(6):
                self.ask(lane)

    def take(self, make: Callable[..., Event], **more: Any) -> list[Effect]:
        effects = super().take(make, **more)
        for effect in effects:
            if isinstance(effect, Forward):
                self.sent.append(effect.number)
            elif isinstance(effect, Recall) and effect.number in self.sent:
                self.sent.remove(effect.number)
            elif isinstance(effect, Refuse):
                self.ended(effect.number)
        return effects

    def ask(self, lane: Lane) -> None:
        self.last += 1
        self.lanes[self.last] = lane
        self.take(Arrived, number=self.last, size=1, lane=lane)
        self.take(Complete, number=self.last, digest=b"%d" % self.last, tokens=500.0)

    def ended(self, number: int) -> None:
        if number in self.sent:
            self.sent.remove(number)
        self.ask(self.lanes.pop(number))

    def step(self) -> None:
        self.at += 1.0
        chance = self.chance.random()
        if chance < 0.01:
            self.engine(EngineState.STARTING)
            self.engine(EngineState.SERVING, at_once=2)
        elif chance < 0.02:
            self.engine(EngineState.DRAINING)
            self.engine(EngineState.SERVING, at_once=2)
        elif chance < 0.05 and self.sent:
            number = self.chance.choice(self.sent)
            self.sent.remove(number)
            self.take(Lost, number=number)
        elif self.sent:
            number = self.chance.choice(self.sent)
            lane, tokens = self.lanes[number], self.chance.randint(1, 1000)
            self.take(Spent, lane=lane, tokens=tokens - 500.0)
            self.used[lane] += tokens
            self.take(Done, number=number)
            self.ended(number)
        self.take(Tick)


@examples(50)
@given(st.integers(2, 4), st.integers(0, 10**6))
def test_busy_keys_get_the_same_tokens_whatever_happens_to_engines(keys: int, seed: int) -> None:
    busy = Busy(keys, seed)
    busy.engine(EngineState.SERVING, at_once=2)
    for _ in range(150 * keys):
        busy.step()
    assert max(busy.used.values()) < 1.1 * min(busy.used.values()) + 2000
