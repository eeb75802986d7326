"""The head's plan follows the cards of the nodes that have joined, and nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.files.directories import Directories
from caovand.core.cluster.node import NodeCard, assume_nodes, node_of
from caovand.core.config.parser import parse
from caovand.core.facts.inventory import Inventory, Node
from caovand.core.facts.network import Network
from caovand.core.plan import Plan, Setting, Taken
from caovand.daemon.start import inspection
from caovand.daemon.start.degraded_plan import PlanMemory
from caovand.daemon.start.planning import SlotPlanner
from caovand.engines.vllm.engine import ENGINE
from caovand.engines.vllm.memory.shards import PARTITION
from tests.core.machines import inventory, named, turing

CONFIG = parse({
    "model": {"path": "/srv/models/Qwen3.6-27B-AWQ"},
    "cluster": {"role": "head", "head": "10.0.0.1:7070"},
})  # fmt: skip
SMALL = node_of("n2", (NodeCard("NVIDIA GeForce RTX 2080 Ti", 11264, (7, 5), 11264),))
ALIKE = node_of("n2", (NodeCard("NVIDIA GeForce RTX 3090", 24576, (8, 6), 24576),))
FAST = Network(12.5e9, 10e-6)


class World:
    """A planner on a machine, and how often it inspected and planned."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, machine: Inventory) -> None:
        self.looks = self.plans = 0
        self.machine = machine
        planned_for = inspection.planned_for

        def look(*_: Any) -> Inventory:
            self.looks += 1
            return self.machine

        def counted(*asked: Any) -> inspection.PreparedStart:
            self.plans += 1
            return planned_for(*asked)

        monkeypatch.setattr(inspection, "inspect", look)
        monkeypatch.setattr(inspection, "check_cards", lambda *_: None)
        monkeypatch.setattr(inspection, "planned_for", counted)
        memory = PlanMemory(folder / "good", ENGINE.healing)
        self.planner = SlotPlanner(ENGINE, Directories(*[folder] * 4), {}, memory)

    async def plan(
        self,
        *others: Node,
        again: Plan | None = None,
        link: Network | None = None,
        taken: bool = True,
    ) -> Plan:
        coming = self.planner.next(CONFIG, None, again, None, "auto")
        await coming.inspect()
        found, _ = await coming.plan(others, link)
        if taken:
            self.planner.prepared = coming.made
        return found


def lowered(found: Plan) -> Plan:
    """What the ladder makes of a plan: one request at a time."""
    settings = {**found.settings, "max_num_seqs": Setting(1, "ladder", "out of memory")}
    return replace(found, settings=settings, taken=(Taken("sequences", "1"),))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch, inventory(gpus=named("RTX 3090")))


def test_nodes_are_planned_for_once(world: World) -> None:
    found = asyncio.run(world.plan(ALIKE))
    assert (world.looks, world.plans) == (1, 1)
    assert found.value("pipeline_parallel_size") == 2
    assert PARTITION not in found.env
    assert world.planner.inventory is not None
    assert [node.name for node in world.planner.inventory.others] == ["n2"]


def test_a_head_whose_card_is_busy_is_planned_for_with_the_cards_that_there_are(
    world: World,
) -> None:
    """Two like itself would hold no model; with a larger one, that has nearly all layers."""
    (card,) = named("RTX 3090")
    busy = replace(card, free_mib=10_000, users=((4242, "python", 14_000),))
    world.machine = inventory(gpus=(busy,))
    with pytest.raises(inspection.StartObstacle, match=r"pid 4242\) holds 14000 MiB"):
        asyncio.run(world.plan(SMALL))
    found = asyncio.run(
        world.plan(node_of("n2", (NodeCard("NVIDIA H200", 143771, (9, 0), 143771),)))
    )
    first, last = map(int, found.env[PARTITION].value.split(","))
    assert first < last
    assert world.plans == 2


def test_what_others_use_of_a_workers_card_leaves_less_for_the_plan(world: World) -> None:
    """vLLM would refuse to start there, and three waits later a rung would find the share."""
    (card,) = [NodeCard("NVIDIA GeForce RTX 3090", 24576, (8, 6), 24576 - 6000)]

    async def story() -> None:
        free, busy = await world.plan(ALIKE), await world.plan(node_of("n2", (card,)))
        share = "gpu_memory_utilization"
        assert busy.value(share) * 24576 <= 24576 - 6 * 1024 < free.value(share) * 24576
        assert busy.value("max_model_len") < free.value("max_model_len")
        (warning,) = (one for one in busy.warnings if "n2" in one)
        assert warning.startswith("programs on n2 hold 6144 MiB of a card there: the context is")
        full = replace(card, free_mib=2000)
        with pytest.raises(
            inspection.StartObstacle, match="programs on n2 hold 23552 MiB"
        ) as refused:
            await world.plan(node_of("n2", (full,)))
        assert (refused.value.finding.failure, refused.value.hold) == ("vram-busy", True)

    asyncio.run(story())


def test_weights_that_do_not_fit_go_to_host_memory_only_where_every_node_has_it(
    world: World,
) -> None:
    world.machine = inventory(gpus=named("RTX 3070"))
    card = (NodeCard("NVIDIA GeForce RTX 3070", 8192, (8, 6), 8192),)

    async def story() -> None:
        roomy = await world.plan(node_of("n2", card, world.machine.host.ram_mib))
        assert roomy.value("cpu_offload_gb") > 0
        with pytest.raises(inspection.StartObstacle, match="it does not fit"):
            await world.plan(node_of("n2", card, 4000))

    asyncio.run(story())


def test_memory_that_comes_and_goes_on_a_worker_keeps_what_the_ladder_took(world: World) -> None:
    async def story() -> None:
        lower = lowered(await world.plan(ALIKE))
        busy = NodeCard("NVIDIA GeForce RTX 3090", 24576, (8, 6), 20000)
        assert await world.plan(node_of("n2", (busy,)), again=lower) == lower

    asyncio.run(story())


def test_other_cards_are_another_plan(world: World) -> None:
    async def story() -> None:
        found = await world.plan(SMALL)
        assert PARTITION in found.env
        # What the ladder makes of it is tried as it is, on the same cards only.
        lower = lowered(found)
        assert await world.plan(SMALL, again=lower) == lower
        assert (world.looks, world.plans) == (1, 1)
        other = await world.plan(ALIKE, again=lower)
        assert (world.looks, world.plans) == (2, 2)
        assert PARTITION not in other.env
        assert not other.taken

    asyncio.run(story())


def test_a_plan_to_be_tried_again_belongs_to_the_nodes_of_the_last_that_was_taken(
    world: World,
) -> None:
    async def story() -> None:
        lower = lowered(await world.plan(SMALL))
        # Others were chosen for a moment; then those are planned for once more.
        await world.plan(ALIKE, again=lower, taken=False)
        assert PARTITION not in (await world.plan(ALIKE, again=lower, taken=False)).env
        assert await world.plan(SMALL, again=lower) == lower

    asyncio.run(story())


def test_a_link_that_was_measured_is_another_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch, inventory(gpus=turing(2)))
    alike = NodeCard("NVIDIA GeForce RTX 2080 Ti", 22527, (7, 5), 22527)
    node = node_of("n2", (alike, alike))
    found = asyncio.run(world.plan(node, link=FAST))
    assert found.value("tensor_parallel_size") == 4
    assert found.value("pipeline_parallel_size") is None


def test_a_link_measured_anew_makes_no_other_plan_by_figures_that_only_jitter(
    world: World,
) -> None:
    async def story() -> None:
        lower = lowered(await world.plan(ALIKE, link=FAST))
        # Each is near the one that the plan was made for, not only near the one before.
        for factor in (0.7, 1.4, 1.9):
            link = Network(FAST.bytes_s / factor, FAST.round_trip_s * factor)
            assert await world.plan(ALIKE, again=lower, link=link) == lower
            assert world.planner.inventory is not None
            assert world.planner.inventory.link == FAST
        assert (world.looks, world.plans) == (1, 1)

    asyncio.run(story())


def test_a_fabric_that_is_there_by_now_makes_another_plan(world: World) -> None:
    async def story() -> None:
        lower = lowered(await world.plan(ALIKE, link=FAST))
        over = replace(FAST, rdma=True)
        await world.plan(ALIKE, again=lower, link=over)
        assert world.planner.inventory is not None
        assert world.planner.inventory.link == over

    asyncio.run(story())


def test_steps_taken_stay_where_the_link_is_another_one(world: World) -> None:
    async def story() -> None:
        lower = lowered(await world.plan(ALIKE, link=FAST))
        slow = Network(FAST.bytes_s / 10, FAST.round_trip_s)
        found = await world.plan(ALIKE, again=lower, link=slow)
        assert world.plans == 2
        assert found.rungs == lower.rungs
        assert found.value("max_num_seqs") == 1
        assert world.planner.inventory is not None
        assert world.planner.inventory.link == slow

    asyncio.run(story())


def test_who_is_no_head_has_no_other_nodes() -> None:
    assert assume_nodes(parse({}).cluster, turing(2)) == ()
    three = replace(CONFIG.cluster, nodes=3)
    found = assume_nodes(three, turing(2))
    assert [node.name for node in found] == ["node 2", "node 3"]
    assert [gpu.free_mib for gpu in found[0].gpus] == [22527, 22527]
