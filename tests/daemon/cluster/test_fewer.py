"""A cluster that may serve on fewer nodes than it has."""

from __future__ import annotations

from typing import Any

from caovand.core.lifecycle.state import State
from tests.daemon.cluster.made_up import WAIT_S, World
from tests.patience import soon


def test_without_leave_it_waits_for_all(world: World) -> None:
    async def story() -> None:
        head = await world.head(nodes=2)
        head.slot.start()
        await head.slot.until(State.HOLD)
        world.clock.ahead_s += 10 * WAIT_S
        head.slot.looks_again()
        held = await head.slot.until(State.HOLD)
        assert "1 of 2 nodes missing" in held.reason

    world.play(story)


def test_with_leave_it_serves_alone_after_a_while_and_with_all_once_they_are_back(
    world: World,
) -> None:
    async def story() -> None:
        head = await world.head(nodes=2, least=1)
        head.slot.start()
        await head.slot.until(State.HOLD)
        world.clock.ahead_s += WAIT_S
        await head.slot.until(State.STARTING, spawned=True)
        alone = head.slot.plans[-1]
        assert alone.value("nnodes") is None
        assert alone.value("node_rank") is None
        assert any(
            "starts on 1 of 2 nodes: 1 of 2 nodes missing" in one for one in head.slot.notices
        )
        head.slot.serves()
        assert head.part.summary()["serving"] == 1

        # One that comes and may go again is not taken in at once, and never while somebody asks.
        head.slot.figures.idle = False
        head.hear("n2")
        await head.ordered()
        head.slot.figures.idle = True
        await head.ordered()
        assert head.slot.snapshot.state is State.SERVING
        head.slot.figures.idle = False
        for _ in range(7):
            world.clock.ahead_s += WAIT_S / 6
            head.hear("n2")
        await head.ordered()
        assert head.slot.snapshot.state is State.SERVING
        head.slot.figures.idle = True
        await soon(lambda: len(head.slot.plans) == 2)
        assert head.slot.plans[-1].value("nnodes") == 2

    world.play(story)


def test_one_whose_link_failed_is_not_back_because_its_daemon_is_started_anew(
    world: World,
) -> None:
    """Its link would fail again, and the model be loaded on the same nodes at each restart."""

    async def story() -> None:
        head = await world.head(nodes=3, least=2)
        links: Any = head.part._links
        links.broken = {"n3"}

        def hear(boot: str) -> None:
            head.hear("n2")
            head.hear("n3", boot=boot)

        hear("n3")
        head.slot.start()
        await head.slot.until(State.HOLD)
        world.clock.ahead_s += WAIT_S
        hear("n3")
        await head.slot.until(State.STARTING, spawned=True)
        head.slot.serves()
        head.part._workers.by_name["n3"].disconnected = True
        hear("its daemon anew")
        for _ in range(7):
            world.clock.ahead_s += WAIT_S / 6
            hear("its daemon anew")
        # Another one is taken in instead, and that start checks all links anew.
        await head.ordered()
        assert head.slot.snapshot.state is State.SERVING
        links.broken = frozenset()
        for _ in range(7):
            head.hear("n4")
            hear("its daemon anew")
            world.clock.ahead_s += WAIT_S / 6
        hear("its daemon anew")
        head.hear("n4")
        await soon(lambda: len(head.slot.plans) == 2)
        assert head.slot.planned_for[-1] == ("n2", "n3")

    world.play(story)


def test_no_fewer_than_allowed_serve(world: World) -> None:
    async def story() -> None:
        head = await world.head(nodes=3, least=2)
        head.slot.start()
        await head.slot.until(State.HOLD)
        world.clock.ahead_s += WAIT_S
        await soon(lambda: "2 of 3 nodes missing" in head.slot.snapshot.reason)
        head.hear("n2")
        await head.slot.until(State.STARTING, spawned=True)
        assert head.slot.plans[-1].value("nnodes") == 2
        assert head.part.summary()["missing"] == 1

    world.play(story)


def test_a_worker_that_a_check_keeps_out_counts_as_missing(world: World) -> None:
    async def story() -> None:
        head = await world.head(nodes=2, least=1)
        head.hear("n2", facts={"caovan": "0.0.1"})
        head.slot.start()
        held = await head.slot.until(State.HOLD)
        assert "node n2: " in held.reason
        world.clock.ahead_s += WAIT_S
        head.hear("n2", facts={"caovan": "0.0.1"})
        await head.slot.until(State.STARTING, spawned=True)
        assert head.slot.plans[-1].value("nnodes") is None
        head.slot.serves()
        world.clock.ahead_s += 2 * WAIT_S
        head.hear("n2", facts={"caovan": "0.0.1"})
        await head.ordered()
        assert head.slot.snapshot.state is State.SERVING, "it would be kept out again"

    world.play(story)
