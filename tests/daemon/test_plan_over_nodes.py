"""The head's plan follows the cards of the nodes that have joined, and nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.directories import Directories
from caovand.core.cluster.node import Card, assumed, node_of
from caovand.core.config_parser import parse
from caovand.core.facts.inventory import Inventory, Network, Node
from caovand.core.plan import Plan
from caovand.daemon import inspection
from caovand.daemon.degraded_plan import PlanMemory
from caovand.daemon.planning import SlotPlanner
from caovand.engines.vllm.engine import ENGINE
from caovand.engines.vllm.memory.stages import PARTITION
from tests.core.machines import inventory, named, turing

CONFIG = parse({
    "model": {"path": "/srv/models/Qwen3.6-27B-AWQ"},
    "cluster": {"role": "head", "head": "10.0.0.1:7070"},
})  # fmt: skip
SMALL = node_of("n2", (Card("NVIDIA GeForce RTX 2080 Ti", 11264, (7, 5)),))
ALIKE = node_of("n2", (Card("NVIDIA GeForce RTX 3090", 24576, (8, 6)),))


class World:
    """A planner on a machine, and how often it planned."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, machine: Inventory) -> None:
        self.plans = 0
        others = assumed(CONFIG.cluster, machine.gpus)
        monkeypatch.setattr(inspection, "look", lambda *_: replace(machine, others=others))
        monkeypatch.setattr(inspection, "check_cards", lambda *_: None)
        planned_for = inspection.planned_for

        def counted(*asked: Any) -> inspection.Prepared:
            self.plans += 1
            return planned_for(*asked)

        monkeypatch.setattr(inspection, "planned_for", counted)
        memory = PlanMemory(folder / "good", ENGINE.healing)
        self.planner = SlotPlanner(ENGINE, Directories(*[folder] * 4), {}, memory)

    async def plan(
        self, *others: Node, again: Plan | None = None, link: Network | None = None
    ) -> Plan:
        found, _ = await self.planner.plan(CONFIG, None, again, None, "auto")
        return await self.planner.over(found, others, link)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch, inventory(gpus=named("RTX 3090")))


def test_nodes_as_assumed_are_planned_for_once(world: World) -> None:
    found = asyncio.run(world.plan(ALIKE))
    assert world.plans == 1
    assert found.value("pipeline_parallel_size") == 2
    assert PARTITION not in found.env
    assert world.planner.inventory is not None
    assert [node.name for node in world.planner.inventory.others] == ["n2"]


def test_other_cards_are_another_plan(world: World) -> None:
    async def story() -> None:
        found = await world.plan(SMALL)
        assert world.plans == 2
        assert PARTITION in found.env
        # What the ladder makes of it is tried as it is, on the same cards only.
        lower = replace(found, settings={**found.settings})
        lower.settings["max_num_seqs"] = replace(lower.settings["max_num_seqs"], value=1)  # type: ignore[index]
        assert await world.plan(SMALL, again=lower) == lower
        assert world.plans == 2
        other = await world.plan(ALIKE, again=lower)
        assert world.plans == 3
        assert PARTITION not in other.env

    asyncio.run(story())


def test_a_link_that_was_measured_is_another_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch, inventory(gpus=turing(2)))
    alike = Card("NVIDIA GeForce RTX 2080 Ti", 22527, (7, 5))
    node = node_of("n2", (alike, alike))
    found = asyncio.run(world.plan(node, link=Network(12.5e9, 10e-6)))
    assert found.value("tensor_parallel_size") == 4
    assert found.value("pipeline_parallel_size") is None


def test_who_is_no_head_has_no_other_nodes() -> None:
    assert assumed(parse({}).cluster, turing(2)) == ()
    three = replace(CONFIG.cluster, nodes=3)
    found = assumed(three, turing(2))
    assert [node.name for node in found] == ["node 2", "node 3"]
    assert [gpu.free_mib for gpu in found[0].gpus] == [22527, 22527]
