"""Two machines with one name, and a restarted daemon."""

from __future__ import annotations

from caovand.core.lifecycle.state import State
from tests.daemon.cluster.made_up import AtHead, World
from tests.patience import soon

TWICE = "two machines are named n2; set [cluster] name on one of them"


def of_names(head: AtHead) -> list[str]:
    return [text for text in head.slot.notices if "are named" in text]


def states(head: AtHead) -> list[tuple[str, str]]:
    return [(node["name"], node["state"]) for node in head.part.describe()["nodes"]]


async def two(world: World) -> AtHead:
    """A head whose worker has a start, and a second machine that calls itself the same."""
    head = await world.head()
    await head.started("n2")
    head.hear(boot="other")
    await head.answers("other")
    return head


def test_a_second_machine_of_a_name_is_refused_once_both_have_answered(world: World) -> None:
    async def story() -> None:
        head = await two(world)
        start = head.order().start
        assert of_names(head) == [], "the first may be a daemon that has ended"
        assert not (await head.ordered("other")).refusal
        await head.answers("n2")
        await head.answers("other")
        assert of_names(head) == [f"{TWICE}, and restart caovan there"]
        order = await head.ordered("other")
        assert order.refusal == of_names(head)[0]
        assert order.plan is None
        # The first goes on, and nobody is told again.
        for _ in range(3):
            await head.answers("n2")
            await head.answers("other")
        assert (await head.ordered()).start == start
        assert len(of_names(head)) == 1
        assert head.slot.notices.count("node n2 joined") == 1
        assert states(head) == [("n1", "here"), ("n2", "joined"), ("n2", "refused")]
        (found,) = (one for one in head.part.describe()["checks"] if one["verdict"] == "FAIL")
        assert (found["node"], found["text"]) == ("n2", "two machines are named n2")

    world.play(story)


def test_a_daemon_that_was_started_anew_takes_its_place_at_once(world: World) -> None:
    async def story() -> None:
        head = await world.head()
        await head.started("n2")
        head.slot.serves()
        head.link.ended.add(b"n2")
        head.hear(boot="anew")
        await soon(lambda: "its daemon was restarted" in head.slot.snapshot.reason)
        assert head.slot.notices.count("node n2 joined") == 2
        assert of_names(head) == []
        await head.slot.until(State.STARTING, spawned=True)
        await soon(lambda: head.order("anew").start)

    world.play(story)


def test_the_last_words_of_a_daemon_that_has_ended_are_no_second_machine(world: World) -> None:
    async def story() -> None:
        head = await two(world)
        for _ in range(3):
            head.hear()  # of before the other one came
            await head.answers("other")
        assert of_names(head) == []
        head.link.ended.add(b"n2")
        await soon(lambda: states(head) == [("n1", "here"), ("n2", "joined")])
        assert of_names(head) == []

    world.play(story)


def test_a_late_report_of_an_earlier_daemon_is_no_second_machine(world: World) -> None:
    async def story() -> None:
        head = await world.head()
        head.hear()
        for _ in range(3):
            head.hear(boot="earlier")
            await head.answers("n2")
        assert of_names(head) == []
        assert states(head) == [("n1", "here"), ("n2", "joined")]

    world.play(story)


def test_the_refused_one_has_the_name_once_the_first_is_silent(world: World) -> None:
    async def story() -> None:
        head = await two(world)
        await head.answers("n2")
        await head.answers("other")
        assert len(of_names(head)) == 1
        world.clock.ahead_s += 30
        head.hear(boot="other")
        await soon(lambda: states(head) == [("n1", "here"), ("n2", "joined")])
        assert not (await head.ordered("other")).refusal

    world.play(story)


def test_a_refused_one_that_is_gone_is_forgotten(world: World) -> None:
    async def story() -> None:
        head = await two(world)
        await head.answers("n2")
        await head.answers("other")
        world.clock.ahead_s += 30
        head.hear()
        await soon(lambda: states(head) == [("n1", "here"), ("n2", "joined")])

    world.play(story)


def test_no_worker_has_the_name_of_the_head(world: World) -> None:
    async def story() -> None:
        head = await world.head()
        head.hear("n1", boot="other")
        await head.answers("other", "n1")
        assert of_names(head) == [f"{TWICE.replace('n2', 'n1')}, and restart caovan there"]
        head.slot.start()
        held = await head.slot.until(State.HOLD)
        assert "1 of 2 nodes missing: two machines are named n1" in held.reason

    world.play(story)


def test_no_number_of_machines_of_one_name_is_remembered(world: World) -> None:
    async def story() -> None:
        head = await world.head()
        head.hear()
        for number in range(300):
            head.hear(boot=f"other {number}")
        await head.ordered("other 0")
        await head.ordered("other 255")
        assert b"other 256" not in head.link.sent

    world.play(story)


def test_a_refused_worker_says_so_and_starts_nothing(world: World) -> None:
    async def story() -> None:
        worker = await world.worker()
        worker.slot.start()
        worker.hear()
        held = await worker.slot.until(State.HOLD)
        assert held.reason == "waiting for the head at 10.0.0.1:7070: it has not ordered a start"
        assert held.finding is not None
        assert held.finding.failure == "node-missing"
        worker.hear(refusal=TWICE)
        await soon(lambda: TWICE in worker.slot.snapshot.reason)
        assert worker.slot.snapshot.finding is not None
        assert worker.slot.snapshot.finding.failure == "node-unfit"
        assert worker.slot.plans == []
        worker.hear()
        await soon(lambda: "it has not ordered a start" in worker.slot.snapshot.reason)

    world.play(story)
