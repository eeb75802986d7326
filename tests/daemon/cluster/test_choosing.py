"""Workers are chosen before there is a plan, and checked again before it starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from caovand.adapters import node_facts
from caovand.core.lifecycle import events
from caovand.core.lifecycle.state import State
from caovand.core.problem import ProblemError
from caovand.daemon.start.inspector import MAX_REPLANS
from tests.core.nodes import T4
from tests.daemon.cluster.made_up import WAIT_S, AtHead, World
from tests.patience import soon


def test_the_plan_is_made_once_for_the_workers_that_were_chosen(world: World) -> None:
    async def story() -> None:
        head = await world.head()
        head.hear("bad", facts={"cards": (T4,)})
        await head.started("n2")
        assert head.slot.planned_for == [("n2",)]

    world.play(story)


def test_nothing_is_planned_while_a_worker_is_missing(world: World) -> None:
    """What the head's own card has no room for may fit on the cards of all."""

    async def story() -> None:
        head = await world.head()
        head.slot.start()
        await head.slot.until(State.HOLD)
        assert head.slot.planned_for == []

    world.play(story)


def restarted(head: AtHead) -> None:
    head.link.ended.add(b"n2")
    head.part._workers.by_name["n2"].disconnected = True
    head.hear("n2", boot="n2 again")


def differs(head: AtHead) -> None:
    head.hear("n2", facts={"firewall": "ufw"})


@pytest.mark.parametrize("change", [restarted, differs])
def test_a_worker_that_changes_while_the_start_is_planned_is_chosen_anew(
    world: World, change: Callable[[AtHead], None]
) -> None:
    async def story() -> None:
        head = await world.head()
        head.slot.meanwhile.append(lambda: change(head))
        head.hear("n2")
        head.slot.start()
        await head.slot.until(State.STARTING, spawned=True)
        assert head.slot.planned_for == [("n2",)] * 2
        assert len(head.slot.plans) == 1
        boot = head.part._workers.by_name["n2"].report.boot
        assert (await head.ordered(boot)).start

    world.play(story)


def test_a_program_that_frees_memory_of_a_card_makes_no_choice_outdated(world: World) -> None:
    """The node then offers that card first."""
    cards = (T4, replace(T4, name="NVIDIA L4", memory_mib=23034))

    async def story() -> None:
        head = await world.head()
        freed = tuple(replace(card, free_mib=5000) for card in cards[::-1])
        head.slot.meanwhile.append(lambda: head.hear("n2", facts={"cards": freed}))
        head.hear("n2", facts={"cards": cards})
        head.slot.start()
        await head.slot.until(State.STARTING, spawned=True)
        assert head.slot.planned_for == [("n2",)]

    world.play(story)


def of_n2(head: AtHead) -> list[int]:
    """What is free of the cards of n2, as the last start was planned for."""
    (node,) = head.part._team.nodes
    return [card.free_mib for card in node.gpus]


async def ended_beside_another(world: World) -> AtHead:
    """A head whose start has ended on n2, which has yet to look at its cards anew."""
    head = await world.head()
    busy = {"cards": (replace(T4, free_mib=5120),) * 2}
    head.hear(facts=busy)
    start = await head.started("n2")
    head.hear(running=start, facts=busy)
    head.slot.serves()
    head.slot.restart()
    await soon(lambda: not head.order().start)
    head.hear(state="STARTING", facts=busy)
    await head.slot.until(State.STARTING, spawned=False)
    for _ in range(3):
        await head.ordered()
    assert len(head.slot.planned_for) == 1
    return head


def test_a_start_counts_with_what_is_free_once_the_rank_before_has_ended(world: World) -> None:
    async def story() -> None:
        head = await ended_beside_another(world)
        head.hear(state="waiting for the head", facts={"cards": (T4, T4)})
        await head.slot.until(State.STARTING, spawned=True)
        assert of_n2(head) == [T4.free_mib] * 2

    world.play(story)


@pytest.mark.parametrize("lost", [False, True])
def test_a_start_waits_no_longer_than_that_for_a_worker_that_looks(
    world: World, lost: bool
) -> None:
    async def story() -> None:
        head = await ended_beside_another(world)
        world.clock.ahead_s += 30 if lost else 10
        if lost:
            await head.slot.until(State.HOLD)
        else:
            await head.slot.until(State.STARTING, spawned=True)
            assert of_n2(head) == [5120] * 2

    world.play(story)


def test_another_worker_takes_the_place_of_one_that_is_busy_by_then(world: World) -> None:
    async def story() -> None:
        head = await world.head()
        head.slot.meanwhile.append(lambda: head.hear("n2", running="an earlier start"))
        head.hear("n2")
        await head.started("n3")
        assert head.slot.planned_for == [("n2",), ("n3",)]

    world.play(story)


def test_a_worker_that_is_gone_by_then_holds_the_start_and_is_named(world: World) -> None:
    async def story() -> None:
        head = await world.head()

        def goes() -> None:
            world.clock.ahead_s += 30

        head.slot.meanwhile.append(goes)
        head.hear("n2")
        head.slot.start()
        held = await head.slot.until(State.HOLD)
        assert "1 of 2 nodes missing: n2 is silent" in held.reason
        assert head.slot.plans == []

    world.play(story)


def test_one_that_changes_again_and_again_holds_the_start(world: World) -> None:
    async def story() -> None:
        head = await world.head()

        def faster() -> None:
            mbit = 1000 + len(head.slot.planned_for)
            head.hear("n2", facts={"speed_mbit": mbit})

        head.slot.meanwhile += [faster] * MAX_REPLANS
        head.hear("n2")
        head.slot.start()
        held = await head.slot.until(State.HOLD)
        assert held.reason == "node n2: it no longer matches the plan"
        assert len(head.slot.planned_for) == MAX_REPLANS

    world.play(story)


def test_what_fewer_nodes_do_not_fix_is_not_tried_each_second(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        head = await world.head(nodes=2, least=1)
        head.hear(stopped=True)
        head.slot.start()
        await head.slot.until(State.HOLD)

        def refused(*_: object, **__: object) -> None:
            raise ProblemError(
                "find the interface that reaches the head", "no interface has it", "set one"
            )

        monkeypatch.setattr(node_facts, "read", refused)
        world.clock.ahead_s += WAIT_S
        # Once, as the head may serve alone by now; then in its own time.
        await soon(lambda: "find the interface" in head.slot.snapshot.reason)
        tried = sum(isinstance(one, events.Reconfigured) for one in head.slot.applied)
        for _ in range(5):
            await head.ordered()  # it has reconsidered by then
        assert head.slot.snapshot.state is State.HOLD
        again = sum(isinstance(one, events.Reconfigured) for one in head.slot.applied)
        assert (tried, again) == (1, 1)

    world.play(story)
