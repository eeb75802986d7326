"""A head's orders to its workers, and its reactions to their reports."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caovand.adapters import node_facts
from caovand.core.cluster.messages import decode_order
from caovand.core.facts.network import Network
from caovand.core.healing.failure import Finding
from caovand.core.lifecycle import events
from caovand.core.lifecycle.state import State
from caovand.core.reporting.report import compare
from caovand.daemon.cluster.workers import MAX_WORKERS
from caovand.daemon.start.inspection import StartObstacle
from caovand.engines.vllm.planning.decisions import forecast
from tests.core.machines import CUDA, inventory, plan
from tests.core.nodes import HEAD, T4
from tests.daemon.cluster import made_up
from tests.daemon.cluster.made_up import WAIT_S, AtHead, World
from tests.patience import soon

UNENDED = "cannot stop the engine: VLLM::Worker (pid 7) survived SIGKILL; check the kernel log"


async def serving(world: World) -> tuple[AtHead, str]:
    """A head that serves with n2, and what that start is called."""
    head = await world.head()
    start = await head.started("n2")
    head.hear(running=start)
    head.slot.serves()
    return head, start


def failed(head: AtHead) -> str:
    """The failure that the head is in HOLD for."""
    assert head.slot.snapshot.finding is not None
    return head.slot.snapshot.finding.failure


# -- orders ---


def test_a_worker_is_ordered_nothing_before_a_start(world: World) -> None:
    async def story() -> None:
        head = await world.head()
        head.hear()
        order = await head.ordered()
        assert (order.start, order.plan, order.rank) == ("", None, 0)

    world.play(story)


def test_an_order_is_the_plan_the_rank_and_how_far_the_start_is(world: World) -> None:
    async def story() -> None:
        head = await world.head(nodes=3)
        start = await head.started("n3", "n2", "spare")
        own = head.slot.plans[-1]
        assert own.value("node_rank") == 0
        ranks = {}
        for boot in ("n2", "n3", "spare"):
            order = await head.ordered(boot)
            ranks[boot] = (order.start, order.rank)
            assert not order.proven
        assert ranks == {"n2": (start, 1), "n3": (start, 2), "spare": ("", 0)}
        plan = (await head.ordered()).plan
        assert plan is not None
        assert (plan.value("nnodes"), plan.value("node_rank")) == (3, None)
        head.slot.apply(
            events.Progressed(
                at=world.clock(), generation=head.slot.snapshot.generation, phase="load",
                progress=0.5, detail="shards",
            )
        )  # fmt: skip
        await soon(lambda: head.order().progress == 0.5)
        order = head.order()
        assert (order.phase, order.detail, order.proven) == ("load", "shards", False)
        head.slot.serves()
        await soon(lambda: head.order().proven)

    world.play(story)


def test_all_end_before_another_start_and_that_is_another_one(world: World) -> None:
    async def story() -> None:
        head, start = await serving(world)
        head.slot.restart()
        await soon(lambda: not head.order().start)
        assert head.slot.snapshot.state is State.RECYCLING, "n2 still runs its rank"
        head.hear()
        await head.slot.until(State.STARTING, spawned=True)
        await soon(lambda: head.order().start)
        assert head.order().start != start

    world.play(story)


def test_a_head_that_is_stopped_orders_nothing_more(world: World) -> None:
    async def story() -> None:
        head, _ = await serving(world)
        head.slot.stop()
        await soon(lambda: not head.order().start)
        head.hear()
        await head.slot.until(State.STOPPED)

    world.play(story)


def test_a_head_without_ray_says_so_and_starts_nothing(world: World) -> None:
    async def story() -> None:
        head = await world.head(executor="ray")
        head.hear(facts={"ray": ""})
        head.slot.start()
        held = await head.slot.until(State.HOLD)
        # Its own reason comes first: on CPU no worker's Ray would help.
        assert "Ray is not installed in the engine's environment; run `sudo" in held.reason
        assert not head.order().start

    world.play(story)


# -- who can take part ---


def test_a_head_names_who_is_missing_and_starts_as_soon_as_it_comes(world: World) -> None:
    async def story() -> None:
        head = await world.head(nodes=3)
        head.hear()
        head.slot.start()
        held = await head.slot.until(State.HOLD)
        assert held.reason == "cannot start: 1 of 3 nodes missing: start caovan there"
        assert failed(head) == "node-missing"
        head.hear("n3", facts={"shm_free_mib": 8000})
        await head.slot.until(State.STARTING, spawned=True)

    world.play(story)


@pytest.mark.parametrize(
    ("report", "why"),
    [
        ({"stopped": True}, "n2 was stopped by its operator: `caovanctl start` there"),
        ({"facts": None, "state": "no engine"}, "n2 has joined and cannot serve: no engine"),
    ],
)
def test_a_head_says_why_a_worker_cannot_take_part(
    world: World, report: dict[str, object], why: str
) -> None:
    async def story() -> None:
        head = await world.head()
        head.hear(**report)
        head.slot.start()
        held = await head.slot.until(State.HOLD)
        assert held.reason == f"cannot start: 1 of 2 nodes missing: {why}"
        head.hear()
        await head.slot.until(State.STARTING, spawned=True)

    world.play(story)


def test_the_check_names_whoever_is_here_and_cannot_be_compared(world: World) -> None:
    def failing(head: AtHead) -> dict[str, str]:
        found = head.part.describe()["checks"]
        return {one["node"]: one["text"] for one in found if one["verdict"] == "FAIL"}

    async def story() -> None:
        head = await world.head(nodes=4)
        head.hear("n2")
        head.hear("n3", facts=None, state="no engine is installed; run this")
        head.hear("n4", facts=None, state="STARTING")
        head.hear("n5", stopped=True)
        assert failing(head)["n1"] == "n1 was stopped by its operator"
        head.slot.obstacles.append(StartObstacle("model-missing", "no model; copy it", hold=False))
        head.slot.start()
        await head.slot.until(State.FAILED)
        assert failing(head) == {
            "n1": "n1 cannot serve: no model; copy it",
            "n3": "n3 has joined and cannot serve: no engine is installed; run this",
            "n4": "n4 has joined and has yet to inspect its engine, model and cards: STARTING",
            "n5": "n5 was stopped by its operator",
        }
        head.slot.obstacles.clear()
        head.slot.start()
        await head.slot.until(State.HOLD)
        assert failing(head).keys() == {"n3", "n4", "n5"}
        head.slot.obstacles.append(StartObstacle("unknown", "the engine is gone", hold=True))
        head.slot.looks_again()
        await soon(lambda: failing(head).get("n1") == "n1 cannot serve: the engine is gone")

    world.play(story)


def test_a_worker_that_was_heard_once_is_silent_and_named(world: World) -> None:
    async def story() -> None:
        head = await world.head()
        head.hear()
        world.clock.ahead_s += 30
        head.slot.start()
        held = await head.slot.until(State.HOLD)
        assert "n2 is silent: check that its machine and caovan are up" in held.reason
        assert head.part.summary()["lost"] == ["n2"]

    world.play(story)


def test_a_worker_that_differs_holds_the_start_until_it_does_not(world: World) -> None:
    async def story() -> None:
        head = await world.head()
        head.hear(facts={"version": "0.1.0"})
        head.slot.start()
        held = await head.slot.until(State.HOLD)
        assert held.reason.startswith("cannot start: node n2: vllm differs")
        assert failed(head) == "node-unfit"
        assert held.reason.endswith("see `caovanctl cluster check`")
        head.hear()
        await head.slot.until(State.STARTING, spawned=True)

    world.play(story)


def test_another_worker_is_chosen_instead_of_one_that_differs(world: World) -> None:
    async def story() -> None:
        head = await world.head()
        head.hear("bad", facts={"cards": (T4,)})
        await head.started("n2")
        assert not (await head.ordered("bad")).start

    world.play(story)


def test_a_worker_with_something_left_of_its_rank_is_waited_for(world: World) -> None:
    async def story() -> None:
        head = await world.head()
        start = await head.started("n2")
        head.hear(running=start)
        head.slot.restart()
        await soon(lambda: not head.order().start)
        # It cannot end its rank; the head has waited long enough.
        head.hear(running=start, state=UNENDED)
        world.clock.ahead_s += 61
        head.hear(running=start, state=UNENDED)
        held = await head.slot.until(State.HOLD)
        why = f"node n2 still runs its rank of the previous start: {UNENDED}"
        assert held.reason == f"cannot start: {why}"
        assert why in head.slot.notices
        head.hear()
        await head.slot.until(State.STARTING, spawned=True)

    world.play(story)


def test_no_more_workers_are_remembered_than_there_is_room_for(world: World) -> None:
    async def story() -> None:
        head = await world.head()

        def names() -> set[str]:
            told = head.part.summary()
            return {*told["joined"], *told["lost"]}

        await head.started("needed")
        for number in range(MAX_WORKERS - 1):
            head.hear(f"n{number + 2}")
        assert len(names()) == MAX_WORKERS
        head.hear("too many")
        assert "too many" not in names(), "all others are here"
        world.clock.ahead_s += 30
        for number in range(1, MAX_WORKERS - 1):
            head.hear(f"n{number + 2}")
        head.hear("needed")
        head.hear("too many")
        assert names() == {"needed", "too many", *(f"n{n + 2}" for n in range(1, 255))}
        # One that is lost gives way unless its rank is needed.
        world.clock.ahead_s += 30
        for number in range(300):
            head.hear(f"other {number}")
        assert "needed" in names()

    world.play(story)


def test_a_node_shows_what_its_engine_reports_of_memory_and_of_nccl(world: World) -> None:
    async def story() -> None:
        head = await world.head()
        staged = plan(engine={"extra_args": ["--pipeline-parallel-size", "2"]})
        found = head.slot.run.forecast = forecast(staged, inventory())
        first, last = (dict(rank.parts)["weights"] / 1024 for rank in found.ranks)
        head.slot.run.reported = {
            "kv_tokens": 9, "weights_gib": first, "stage_0_weights_gib": first, "kv_gib": 3.5,
            "nccl_0_1": "Socket/0", "nccl_0_2": "IB/0",
        }  # fmt: skip
        head.hear(sizes={"stage_1_weights_gib": last}, network="1 -> 0 Socket/0")
        told = head.part.describe()
        own, other = (compare(told["forecast"], node["reported"]) for node in told["nodes"])
        assert own.keys() == {"stage_0_weights_gib"}
        assert told["nodes"][0]["reported"].keys() == {"stage_0_weights_gib", "kv_gib"}, "each once"
        (compared,) = other.values()
        assert compared["forecast"] == pytest.approx(compared["reported"], abs=0.001)
        assert [node["network"] for node in told["nodes"]] == [
            "0 -> 1 Socket/0, 0 -> 2 IB/0", "1 -> 0 Socket/0",
        ]  # fmt: skip

    world.play(story)


# -- what happens to a start ---


@pytest.mark.parametrize(
    ("report", "failure", "text"),
    [
        (
            {"failed": "START", "finding": Finding("hang", "no step for 60 s", "serving")},
            "hang",
            "node n2: no step for 60 s",
        ),
        ({"stopped": True}, "node-lost", "node n2: stopped by its operator"),
    ],
)
def test_what_ends_a_rank_ends_all_with_the_node_named(
    world: World, report: dict[str, object], failure: str, text: str
) -> None:
    async def story() -> None:
        head, start = await serving(world)
        found = {name: start if one == "START" else one for name, one in report.items()}
        head.hear(**found, running=start)
        ending = await head.slot.until(State.RECYCLING)
        assert ending.finding is not None
        assert (ending.finding.failure, ending.finding.text) == (failure, text)
        await soon(lambda: not head.order().start)
        head.hear(**found)
        await head.slot.until(State.HOLD if "stopped" in report else State.STARTING)

    world.play(story)


def test_a_failure_of_a_start_that_is_over_ends_nothing(world: World) -> None:
    async def story() -> None:
        head, start = await serving(world)
        head.hear(failed="an earlier one", finding=Finding("hang", "old"), running=start)
        await head.ordered()
        assert head.slot.snapshot.state is State.SERVING

    world.play(story)


def test_a_worker_without_a_rank_ends_nothing(world: World) -> None:
    async def story() -> None:
        head, start = await serving(world)
        head.hear("n3", stopped=True)
        head.hear("n3", failed=start, finding=Finding("hang", "not its own"))
        await head.ordered("n3")
        assert head.slot.snapshot.state is State.SERVING

    world.play(story)


def test_a_worker_that_falls_silent_ends_all_and_nobody_waits_for_its_end(world: World) -> None:
    async def story() -> None:
        head, _ = await serving(world)
        head.slot.ends.clear()
        world.clock.ahead_s += 30
        ending = await head.slot.until(State.RECYCLING)
        assert ending.finding is not None
        assert ending.finding.failure == "node-lost"
        assert ending.finding.text == "node n2: silent for 20 s"
        # It may hear us though we do not hear it: its order ends before our own engine has.
        await soon(lambda: not head.order().start)
        head.slot.ends.set()
        held = await head.slot.until(State.HOLD)
        assert "n2 is silent" in held.reason

    world.play(story)


def test_a_head_knows_from_its_orders_how_long_a_report_took(world: World) -> None:
    async def story() -> None:
        head = await world.head()
        head.hear(echo=world.clock() - 0.010, held_s=0.004)
        head.hear(echo=world.clock() - 0.100, held_s=0.004)
        head.slot.start()
        await head.slot.until(State.STARTING, spawned=True)
        warned = [one["text"] for one in head.part.describe()["checks"]]
        assert any("takes 6." in text for text in warned), warned

    world.play(story)


def test_checks_count_with_the_ranks_that_were_planned(world: World) -> None:
    async def story() -> None:
        head = await world.head()

        def warned() -> list[str]:
            found = [one["text"] for one in head.part.describe()["checks"]]
            return [text for text in found if "slows down all nodes" in text]

        head.hear(facts={"p2p": False})
        head.slot.start()
        await head.slot.until(State.STARTING, spawned=True)
        assert len(head.slot.plans[-1].cards or ()) == 2
        (only,) = warned()
        assert only.endswith("cannot: n2 slows down all nodes")

    world.play(story)


def test_what_cannot_be_read_is_told_once_and_named_while_a_node_is_missing(world: World) -> None:
    async def story() -> None:
        head = await world.head()
        for _ in range(3):
            head.link.on_frame(b"x", b'{"v":1}')
        told = "cannot read what a worker reports: it does not have version 2"
        assert [told in text for text in head.slot.notices] == [True]
        head.slot.start()
        held = await head.slot.until(State.HOLD)
        assert told in held.reason
        assert failed(head) == "node-unfit"

    world.play(story)


@pytest.mark.parametrize(("devices", "rdma"), [({}, False), ({"mlx5_0": "InfiniBand"}, True)])
def test_a_plan_knows_whether_nccl_goes_the_way_that_was_measured(
    world: World, monkeypatch: pytest.MonkeyPatch, devices: dict[str, str], rdma: bool
) -> None:
    monkeypatch.setattr(made_up, "HEAD", replace(HEAD, rdma={"mlx5_0": "InfiniBand"}))

    async def story() -> None:
        head = await world.head()
        head.hear(facts={"rdma": devices})
        head.slot.start()
        await head.slot.until(State.STARTING, spawned=True)
        assert head.slot.planned_over == [Network(1.175e9, 1e-4, rdma)]

    world.play(story)


def test_a_worker_whose_reports_cannot_be_read_is_told_so(world: World) -> None:
    """By an order, which it may be unable to read as well."""

    async def story() -> None:
        head, start = await serving(world)
        head.link.on_frame(b"n3", b'{"v":1,"name":"n3"}')
        order = await head.ordered("n3")
        assert order.refusal == (
            "cannot read what node n3 reports: it does not have version 2: nodes must run the "
            "same caovan; install the same caovan on all nodes, then: sudo systemctl restart "
            "caovan"
        )
        # One frame of a worker that has joined is no reason to end its rank.
        head.link.on_frame(b"n2", b'{"v":1,"name":"n2"}')
        order = await head.ordered("n2")
        assert (order.refusal, order.start) == ("", start)

    world.play(story)


def test_a_worker_whose_reports_can_be_read_no_more_is_told_once_it_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And hears nothing else in between: each other order would make it look again."""

    async def story() -> None:
        head, _ = await serving(world)
        world.clock.ahead_s += 30
        await head.slot.until(State.BACKOFF)
        head.link.on_frame(b"n2", b'{"v":1,"name":"n2"}')
        await soon(lambda: head.order().refusal)
        assert head.order().refusal.startswith(
            "cannot read what node n2 reports: it does not have version 2: "
        )
        assert head.order().start == ""
        heard, send = [], head.link.send

        async def noted(identity: bytes, frame: bytes) -> bool:
            heard.append(decode_order(frame).refusal != "")
            return await send(identity, frame)

        monkeypatch.setattr(head.link, "send", noted)
        await soon(lambda: len(heard) >= 4)
        assert all(heard)

    world.play(story)


def test_what_cannot_be_read_of_one_stays_while_others_are_heard(world: World) -> None:
    def unread(head: AtHead) -> list[tuple[str, str]]:
        found = head.part.describe()["checks"]
        return [(one["node"], one["text"]) for one in found if "cannot read" in one["text"]]

    async def story() -> None:
        head = await world.head(nodes=4)
        head.link.on_frame(b"n3", b'{"v":1,"name":"n3"}')
        head.link.on_frame(b"n4", b'{"v":1,"name":"n\\u001b4"}')
        head.hear("n2")
        fact = "reports: it does not have version 2: nodes must run the same caovan"
        assert unread(head) == [
            (name, f"cannot read what node {name} {fact}") for name in ("n3", r"n\x1b4")
        ]
        head.hear("n3")
        assert len(unread(head)) == 1
        world.clock.ahead_s += 30
        assert unread(head) == []

    world.play(story)


def test_a_head_that_serves_alone_needs_no_ray(world: World) -> None:
    async def story() -> None:
        head = await world.head(nodes=2, least=1, executor="ray")
        head.slot.start()
        await head.slot.until(State.HOLD)
        world.clock.ahead_s += WAIT_S
        await head.slot.until(State.STARTING, spawned=True)
        assert head.slot.plans[-1].value("nnodes") is None

    world.play(story)


def test_a_head_that_may_serve_alone_does_so_over_a_ray_that_is_refused(world: World) -> None:
    """Though no worker is missing, and none differs."""

    async def story() -> None:
        head = await world.head(least=1, executor="ray")
        head.hear()
        head.slot.start()
        held = await head.slot.until(State.HOLD)
        why = "Ray is not installed in the engine's environment; run `sudo"
        assert held.reason.startswith(f"cannot start: {why}")
        world.clock.ahead_s += WAIT_S
        head.hear()
        await head.slot.until(State.STARTING, spawned=True)
        assert head.slot.plans[-1].value("nnodes") is None
        assert any(f"starts on 1 of 2 nodes: {why}" in text for text in head.slot.notices)
        head.slot.serves()
        world.clock.ahead_s += WAIT_S
        for _ in range(3):
            await head.answers("n2")
        assert head.slot.snapshot.state is State.SERVING, "nobody is taken in"

    world.play(story)


@pytest.fixture
def with_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = inventory(engine=replace(CUDA, ray="2.60.0"))
    monkeypatch.setattr(made_up, "inventory", lambda: machine)


@pytest.mark.usefixtures("with_ray")
def test_a_name_that_leads_to_ipv6_is_refused_over_ray(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = replace(HEAD, name="n1", address="fd00::1", listens_at="fd00::1")
    monkeypatch.setattr(node_facts, "read", lambda *_, **__: own)

    async def story() -> None:
        head = await world.head(executor="ray")
        head.hear()
        head.slot.start()
        failed = await head.slot.until(State.FAILED)
        assert "the head's address fd00::1 is IPv6" in failed.reason

    world.play(story)


@pytest.mark.usefixtures("with_ray")
def test_the_package_of_its_executor_counts_on_every_node(world: World) -> None:
    async def story() -> None:
        head = await world.head(executor="ray")
        head.hear(facts={"ray": "2.59.1"})
        head.slot.start()
        held = await head.slot.until(State.HOLD)
        assert "Ray differs: 2.60.0 on n1, 2.59.1 on n2" in held.reason

    world.play(story)


@pytest.mark.usefixtures("with_ray")
def test_an_engine_goes_on_where_a_reload_finds_a_ray_that_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        head = await world.head(least=1, executor="ray")
        start = await head.started("n2")
        head.hear(running=start)
        head.slot.serves()
        monkeypatch.setattr(made_up, "inventory", inventory)
        head.slot.reload()
        await soon(lambda: any(type(one) is events.StartRefused for one in head.slot.applied))
        assert head.slot.snapshot.state is State.SERVING
        assert (await head.ordered()).start == start

    world.play(story)
