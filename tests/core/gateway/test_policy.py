"""The life of a request at the gateway, event by event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from caovand.core.gateway.events import (
    Arrived,
    Begun,
    Closing,
    Complete,
    Done,
    Effect,
    End,
    EngineIs,
    EngineState,
    Event,
    Faulted,
    Forward,
    Grew,
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
    Why,
)
from caovand.core.gateway.fair import SHARED_LANE, Lane
from caovand.core.gateway.policy import (
    CONFIRM_S,
    MAX_ATTEMPTS,
    RECONNECT_S,
    RETRY_S,
    Policy,
)
from caovand.core.gateway.requests import MAX_ALONE_BEGUN_S, MAX_ALONE_S, GatewayRules

RULES = GatewayRules(hold_s=100.0, max_waiting=8, max_bytes=1000)


class World:
    """A policy with a clock, the engine's generation, and short words for events."""

    def __init__(self, rules: GatewayRules = RULES) -> None:
        self.policy, self.at, self.generation, self.last = Policy(rules), 0.0, 0, 0

    def take(self, make: Callable[..., Event], **more: Any) -> list[Effect]:
        return list(self.policy.take(make(at=self.at, **more)))

    def engine(self, state: EngineState, **more: Any) -> list[Effect]:
        self.generation += state is EngineState.SERVING
        return self.take(EngineIs, state=state, generation=self.generation, **more)

    def arrive(
        self, digest: bytes = b"", size: int = 10, lane: Lane = SHARED_LANE
    ) -> tuple[int, list[Effect]]:
        """A request whose body is there at once; its number."""
        self.last += 1
        effects = self.take(Arrived, number=self.last, size=size, lane=lane)
        if not effects:
            digest = digest or b"%d" % self.last
            effects = self.take(Complete, number=self.last, digest=digest)
        return self.last, effects

    def after(self, seconds: float) -> list[Effect]:
        self.at += seconds
        return self.take(Tick)


def serving(**more: Any) -> World:
    world = World()
    world.engine(EngineState.SERVING, **more)
    return world


# -- what one engine is enough for ---


def test_a_request_goes_to_the_engine_at_once_and_is_forgotten_once_answered() -> None:
    world = serving()
    number, effects = world.arrive()
    assert effects == [Forward(number, 1)]
    assert world.take(Begun, number=number) == []
    assert world.policy.stage(number) is Stage.BEGUN
    assert world.take(Done, number=number) == []
    assert (world.policy.stage(number), world.policy.at_engine) == (None, 0)


def test_requests_wait_in_order_for_an_engine_and_for_room_in_it() -> None:
    world = World()
    assert [world.arrive()[1] for _ in range(3)] == [[], [], []]
    assert world.engine(EngineState.SERVING, at_once=2) == [Forward(1, 1), Forward(2, 1)]
    assert world.policy.waiting == 1
    assert world.take(Done, number=1) == [Forward(3, 1)]


def test_a_client_that_leaves_makes_room_wherever_its_request_is() -> None:
    world = serving(at_once=1)
    (first, _), (second, _), (third, _) = (world.arrive() for _ in range(3))
    assert world.take(Left, number=second) == []
    assert world.take(Left, number=first) == [Forward(third, 1)]
    assert world.take(Done, number=second) == []


def test_late_events_of_an_attempt_that_was_given_up_change_nothing() -> None:
    world = serving()
    number, _ = world.arrive()
    world.engine(EngineState.STARTING)
    for late in (Begun, Done, Lost, Faulted, Unsent):
        assert world.take(late, number=number) == []
    assert world.policy.stage(number) is Stage.WAITING


def test_keys_take_turns_at_an_engine_without_room_and_pay_for_what_they_really_used() -> None:
    world, (a, b) = serving(at_once=1), (Lane("a"), Lane("b"))
    numbers = [world.arrive(lane=lane)[0] for lane in (a, a, a, b, b)]
    assert world.take(Spent, lane=a, tokens=9.0) == []
    assert world.take(Done, number=numbers[0]) == [Forward(numbers[3], 1)]
    assert world.take(Done, number=numbers[3]) == [Forward(numbers[4], 1)], "a owes more"
    assert world.take(Done, number=numbers[4]) == [Forward(numbers[1], 1)]


def test_what_an_engine_took_with_it_is_not_paid_for() -> None:
    world, (a, b) = serving(at_once=1), (Lane("a"), Lane("b"))
    first, _ = world.arrive(lane=a)
    world.engine(EngineState.DRAINING)
    world.engine(EngineState.STARTING)
    second, _ = world.arrive(lane=b)
    assert world.engine(EngineState.SERVING, at_once=1) == [Forward(first, 2)]
    assert world.take(Done, number=first) == [Forward(second, 2)]


# -- bounds ---


def test_one_key_fills_half_of_the_queue_at_most() -> None:
    world, flood = World(), Lane("flood")
    half = RULES.max_waiting // 2
    numbers = [world.arrive(lane=flood)[0] for _ in range(half)]
    number, effects = world.arrive(lane=flood)
    assert effects == [Refuse(number, Why.KEY_FULL, RETRY_S)]
    assert world.arrive(lane=Lane("other"))[1] == []
    world.engine(EngineState.SERVING, at_once=1)
    assert world.arrive(lane=flood)[1] == [], "one is at the engine"
    world.engine(EngineState.STARTING)
    assert world.arrive(lane=flood)[1] != []
    for number in numbers[:2]:
        world.take(Left, number=number)
    assert world.arrive(lane=flood)[1] == []


def test_the_queue_is_bounded_by_count() -> None:
    world = World()
    numbers = [world.arrive()[0] for _ in range(RULES.max_waiting)]
    number, effects = world.arrive()
    assert effects == [Refuse(number, Why.QUEUE_FULL, RETRY_S)]
    world.take(Left, number=numbers[0])
    assert world.arrive()[1] == []


def test_the_bodies_are_bounded_by_bytes_also_where_they_grow() -> None:
    world = World()
    first, _ = world.arrive(size=900)
    second, effects = world.arrive(size=101)
    assert effects == [Refuse(second, Why.BYTES_FULL, RETRY_S)]
    world.last += 1
    assert world.take(Arrived, number=world.last) == []
    assert world.take(Grew, number=world.last, size=100) == []
    refused = [Refuse(world.last, Why.BYTES_FULL, RETRY_S)]
    assert world.take(Grew, number=world.last, size=101) == refused
    world.engine(EngineState.SERVING)
    world.take(Begun, number=first)
    assert world.arrive(size=1000)[1] != [], "the body of a begun answer is not kept"


def test_a_wait_that_would_be_too_long_is_refused_at_once_and_says_when_to_come() -> None:
    world = World()
    world.engine(EngineState.STARTING, expected_s=100.5)
    number, effects = world.arrive()
    assert effects == [Refuse(number, Why.WOULD_WAIT, 101)]
    world.engine(EngineState.STARTING, expected_s=99.0)
    assert world.arrive()[1] == []


def test_a_long_queue_is_refused_by_the_seconds_that_answers_take() -> None:
    world = serving(at_once=1)
    number, _ = world.arrive()
    world.at += 60
    world.take(Done, number=number)
    assert [world.arrive()[1] for _ in range(2)] == [[Forward(2, 1)], []]
    number, effects = world.arrive()
    assert effects == [Refuse(number, Why.WOULD_WAIT, 120)]


def test_nothing_waits_longer_than_the_bound() -> None:
    world = World()
    number, _ = world.arrive()
    assert world.after(RULES.hold_s - 1) == []
    assert world.after(1) == [Refuse(number, Why.TOO_LONG, RETRY_S)]


def test_where_no_engine_is_to_come_nothing_waits() -> None:
    world = World()
    first, _ = world.arrive()
    assert world.engine(EngineState.GONE) == [Refuse(first, Why.NO_ENGINE, RETRY_S)]
    second, effects = world.arrive()
    assert effects == [Refuse(second, Why.NO_ENGINE, RETRY_S)]
    world.engine(EngineState.STARTING)
    world.last += 1
    world.take(Arrived, number=world.last)
    world.engine(EngineState.GONE)
    late = world.take(Complete, number=world.last, digest=b"")
    assert late == [Refuse(world.last, Why.NO_ENGINE, RETRY_S)]


# -- a planned end ---


def test_an_engine_that_drains_gets_nothing_new_and_finishes_what_it_has() -> None:
    world = serving()
    first, _ = world.arrive()
    world.take(Begun, number=first)
    world.engine(EngineState.DRAINING)
    second, effects = world.arrive()
    assert effects == []
    assert world.take(Done, number=first) == []
    assert world.engine(EngineState.STARTING) == []
    assert world.engine(EngineState.SERVING) == [Forward(second, 2)]


def test_a_planned_end_makes_no_suspects() -> None:
    world = serving()
    begun, _ = world.arrive()
    world.take(Begun, number=begun)
    others = [world.arrive()[0] for _ in range(2)]
    world.engine(EngineState.DRAINING)
    ended = world.engine(EngineState.STARTING)
    assert ended == [End(begun, Why.ENGINE_ENDED, RETRY_S), *map(Recall, others)]
    assert world.engine(EngineState.SERVING) == [Forward(number, 2) for number in others]


def test_an_engine_that_drains_for_good_leaves_nobody_waiting() -> None:
    world = serving(at_once=1)
    first, _ = world.arrive()
    second, _ = world.arrive()
    drained = world.engine(EngineState.DRAINING, returns=False)
    assert drained == [Refuse(second, Why.NO_ENGINE, RETRY_S)]
    assert world.policy.stage(first) is Stage.FORWARDED


# -- an unplanned one ---


def test_what_had_not_begun_when_an_engine_died_is_sent_again_one_at_a_time() -> None:
    world = serving()
    begun, _ = world.arrive()
    world.take(Begun, number=begun)
    others = [world.arrive()[0] for _ in range(2)]
    died = world.engine(EngineState.STARTING)
    assert died == [End(begun, Why.ENGINE_ENDED, RETRY_S), *map(Recall, others)]
    fresh, _ = world.arrive()
    assert world.engine(EngineState.SERVING) == [Forward(others[0], 2)]
    assert world.take(Begun, number=others[0]) == []
    assert world.take(Done, number=others[0]) == [Forward(others[1], 2)]
    assert world.take(Done, number=others[1]) == [Forward(fresh, 2)]


def test_a_suspect_that_ends_a_second_engine_is_refused_and_so_is_its_like() -> None:
    world = serving()
    killer, _ = world.arrive(b"k")
    bystander, _ = world.arrive(b"b")
    world.engine(EngineState.STARTING)
    assert world.engine(EngineState.SERVING) == [Forward(killer, 2)]
    assert world.engine(EngineState.STARTING) == [Refuse(killer, Why.KILLER)]
    assert world.engine(EngineState.SERVING) == [Forward(bystander, 3)]
    world.take(Done, number=bystander)
    again, effects = world.arrive(b"k")
    assert effects == [Refuse(again, Why.KILLER)]
    assert world.arrive(b"b")[1] == [Forward(again + 1, 3)]


def test_a_begun_answer_that_comes_again_after_a_death_is_tried_alone() -> None:
    for cut_first in (False, True):  # the connection may break before the daemon knows
        world = serving()
        killer, _ = world.arrive(b"k")
        world.take(Begun, number=killer)
        if cut_first:
            assert world.take(Lost, number=killer) == [End(killer, Why.ENGINE_ENDED, 1)]
        world.engine(EngineState.STARTING)
        other, _ = world.arrive(b"o")
        again, _ = world.arrive(b"k")
        assert world.engine(EngineState.SERVING) == [Forward(again, 2)]
        world.take(Begun, number=again)
        if cut_first:
            world.take(Lost, number=again)
        world.engine(EngineState.STARTING)
        assert world.arrive(b"k")[1] == [Refuse(world.last, Why.KILLER)]
        assert world.engine(EngineState.SERVING) == [Forward(other, 3)]


def test_one_that_waits_is_recognised_as_the_same_once_the_engine_s_death_is_known() -> None:
    world = serving(at_once=1)
    first, _ = world.arrive(b"k")
    world.take(Begun, number=first)
    world.take(Lost, number=first)
    other, _ = world.arrive(b"o")  # the connection broke, and the daemon has not said why
    again, _ = world.arrive(b"k")
    world.take(Unsent, number=other)
    world.engine(EngineState.STARTING)
    assert world.engine(EngineState.SERVING) == [Forward(again, 2)]
    world.take(Begun, number=again)
    world.take(Lost, number=again)
    world.take(Unsent, number=other)
    third, _ = world.arrive(b"k")
    assert world.engine(EngineState.STARTING) == [Refuse(third, Why.KILLER)]
    assert world.engine(EngineState.SERVING) == [Forward(other, 3)]


def test_a_suspect_is_alone_for_a_limited_time() -> None:
    for begins, limit_s in ((False, MAX_ALONE_S), (True, MAX_ALONE_BEGUN_S)):
        world = serving()
        suspect, _ = world.arrive()
        world.engine(EngineState.STARTING)
        world.engine(EngineState.SERVING)
        if begins:
            world.take(Begun, number=suspect)
        other, effects = world.arrive()
        assert effects == []
        assert world.after(limit_s) == [Forward(other, 2)]
        assert world.policy.at_engine == 2


def test_others_pass_a_suspect_for_a_limited_time_then_it_has_its_turn() -> None:
    world = serving()
    world.arrive(b"k")
    world.engine(EngineState.STARTING)
    world.take(Left, number=1)
    world.engine(EngineState.SERVING)
    (busy, _), (suspect, waits), (passing, passes) = (world.arrive(d) for d in (b"", b"k", b""))
    assert waits == []
    assert passes == [Forward(passing, 2)]
    assert world.after(RULES.hold_s / 4) == []
    late, effects = world.arrive()
    assert effects == []
    assert world.take(Done, number=busy) == []
    assert world.take(Done, number=passing) == [Forward(suspect, 2)]
    assert world.take(Done, number=suspect) == [Forward(late, 2)]


def test_a_request_is_no_suspect_any_more_once_it_was_answered_alone() -> None:
    world = serving()
    suspect, _ = world.arrive(b"s")
    world.engine(EngineState.STARTING)
    world.engine(EngineState.SERVING)
    world.take(Done, number=suspect)
    assert [world.arrive(d)[1] for d in (b"x", b"s")] == [[Forward(2, 2)], [Forward(3, 2)]]


# -- an engine that may have died ---


def test_an_engine_that_cannot_be_connected_to_is_tried_again_and_nobody_is_blamed() -> None:
    world = serving()
    number, _ = world.arrive()
    assert world.take(Unsent, number=number) == []
    other, effects = world.arrive()
    assert effects == []
    assert world.after(RECONNECT_S) == [Forward(number, 1), Forward(other, 1)]


def test_a_broken_connection_waits_for_the_daemon_s_word() -> None:
    world = serving()
    number, _ = world.arrive()
    assert world.take(Lost, number=number) == []
    other, effects = world.arrive()
    assert effects == [], "nothing more goes to an engine that may be dead"
    assert world.engine(EngineState.STARTING) == [Recall(number)]
    assert world.engine(EngineState.SERVING) == [Forward(number, 2)]
    assert world.take(Done, number=number) == [Forward(other, 2)]


def test_a_connection_that_a_living_engine_breaks_again_and_again_is_refused() -> None:
    world = serving()
    number, _ = world.arrive()
    for _ in range(MAX_ATTEMPTS - 1):
        world.take(Lost, number=number)
        assert world.after(CONFIRM_S) == [Recall(number), Forward(number, 1)]
    world.take(Lost, number=number)
    assert world.after(CONFIRM_S) == [Refuse(number, Why.LOST, 1)]


def test_a_fault_is_passed_on_if_the_engine_lives_and_sent_again_if_it_dies() -> None:
    world = serving()
    (first, _), (second, _) = world.arrive(), world.arrive()
    assert world.take(Faulted, number=first) == []
    assert world.arrive()[1] == [Forward(3, 1)], "others go on"
    assert world.take(Healthy) == [], "it may be about to end"
    assert world.after(CONFIRM_S) == []
    assert world.take(Healthy) == [Release(first)]
    world.take(Faulted, number=second)
    assert world.after(100 * CONFIRM_S) == [], "its process takes long to end"
    assert Recall(second) in world.engine(EngineState.STARTING)


def test_a_fault_in_a_begun_answer_is_passed_on_unless_the_engine_dies_of_it() -> None:
    for what_follows, effects in (
        (None, [Release(1)]),
        (EngineState.STARTING, [End(1, Why.ENGINE_ENDED, RETRY_S)]),
        (EngineState.DRAINING, [End(1, Why.ENGINE_ENDED, RETRY_S)]),
    ):
        world = serving()
        number, _ = world.arrive()
        world.take(Begun, number=number)
        assert world.take(Faulted, number=number) == []
        world.after(CONFIRM_S)
        assert (world.engine(what_follows) if what_follows else world.take(Healthy)) == effects
        assert world.policy.at_engine == 0
    world = serving()
    number, _ = world.arrive()
    world.take(Begun, number=number)
    world.engine(EngineState.DRAINING)
    assert world.take(Faulted, number=number) == [End(number, Why.ENGINE_ENDED, RETRY_S)]


def test_what_an_engine_that_drains_no_longer_answers_is_the_next_one_s() -> None:
    world = serving()
    first, second, third = (world.arrive()[0] for _ in range(3))
    world.take(Lost, number=third)
    assert world.engine(EngineState.DRAINING) == [Recall(third)]
    assert world.take(Faulted, number=first) == [Recall(first)]
    assert world.take(Lost, number=second) == [Recall(second)]
    assert world.policy.at_engine == 0, "there is nothing to drain"
    assert world.after(10 * CONFIRM_S) == []
    assert world.engine(EngineState.STARTING) == []
    forwarded = [Forward(number, 2) for number in (first, second, third)]
    assert world.engine(EngineState.SERVING) == forwarded, "no suspects"


def test_at_the_gateways_own_end_every_request_ends_and_none_is_let_in() -> None:
    world = serving(at_once=2)
    (begun, _), (sent, _), (waits, _) = (world.arrive() for _ in range(3))
    world.take(Begun, number=begun)
    refused = [Refuse(number, Why.CLOSING, 1) for number in (sent, waits)]
    assert world.take(Closing) == [End(begun, Why.CLOSING, 1), *refused]
    assert world.arrive()[1] == [Refuse(world.last, Why.CLOSING, 1)]
    assert world.engine(EngineState.SERVING) == []
