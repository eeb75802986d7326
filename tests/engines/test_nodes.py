"""One plan over several machines: how it is split, and what is each node's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from caovand.core.config.parser import parse
from caovand.core.config.schema import Config
from caovand.core.engine.record import UNTITLED, NodePlace
from caovand.core.facts.inventory import Gpu, Inventory, ModelCard, Node, device_name
from caovand.core.plan import Plan, Setting, Taken, Unplannable
from caovand.engines.vllm.memory.shards import PARTITION
from caovand.engines.vllm.nodes import (
    all_reduces_over_link,
    by_host_name,
    no_rdma,
    plan_of_rank,
    plan_on_node,
    rank_of,
    ranks_in,
    spread,
    usable_cards,
)
from caovand.engines.vllm.planning.decisions import forecast
from tests.core.machines import LLAMA_70B_AWQ, alike, inventory, named, plan, turing
from tests.engines.test_planner import ON_CPU


def values(found: Any, *names: str) -> dict[str, Any]:
    return {name: found.value(name) for name in names}


def over(nodes: int, machine: Inventory | None = None, **sections: Any) -> Plan:
    """The plan over so many nodes like this one."""
    machine = alike(nodes, machine)
    return spread(plan(machine, **sections), machine, "10.0.0.1", 7071)


def test_cards_are_split_inside_a_node_and_stages_lie_on_the_nodes() -> None:
    found = over(3)
    assert values(found, "nnodes", "master_addr", "master_port") == {
        "nnodes": 3, "master_addr": "10.0.0.1", "master_port": 7071,
    }  # fmt: skip
    assert found.value("tensor_parallel_size") == plan().value("tensor_parallel_size") == 2
    assert found.value("pipeline_parallel_size") == 3
    assert found.env["CUDA_VISIBLE_DEVICES"].value == "0,1"


def test_what_one_node_has_no_room_for_is_sized_for_all() -> None:
    """70 billion parameters of four bits, 37 GiB, on three cards of 22 GB: a stage on each."""
    machine = inventory(LLAMA_70B_AWQ, turing(1))
    with pytest.raises(Unplannable, match="GiB of weights per card would stay in host memory"):
        plan(machine)
    found = over(3, machine)
    assert found.value("cpu_offload_gb") is None
    assert found.value("max_model_len") > 32768
    full = replace(machine, others=tuple(Node(name, turing(1)) for name in ("n2", "n3")))
    memory = forecast(found, full)
    assert memory.fits
    assert [(rank.node, rank.layers) for rank in memory.ranks] == [
        ("head", (0, 23)), ("n2", (24, 53)), ("n3", (54, 79)),  # the ends hold vocabulary, too
    ]  # fmt: skip


def test_layers_are_dealt_by_the_cards_of_the_nodes() -> None:
    machine = inventory(gpus=named("RTX 3090"))
    others = (Node("n2", named("RTX 2080 Ti 11 GB")),)
    found = plan(replace(machine, others=others))
    first, last = map(int, found.env[PARTITION].value.split(","))
    assert first > 2 * last
    # The oldest card of all decides what it computes in.
    assert found.value("dtype") == "half"
    assert plan(machine).value("dtype") is None
    found = spread(found, alike(2), "10.0.0.1", 7071)
    worker = plan_on_node(found, Config(), replace(machine, gpus=named("RTX 2080 Ti 11 GB")))
    assert worker.env[PARTITION] == found.env[PARTITION]


@pytest.mark.parametrize(
    ("typed", "off"), [("1", True), (" 2", True), ("-1", True), ("0", False), ("yes", False)]
)
def test_an_operator_can_keep_nccl_from_infiniband(typed: str, off: bool) -> None:
    why = "[engine] env sets NCCL_IB_DISABLE" if off else ""
    assert no_rdma({"NCCL_IB_DISABLE": typed}) == why
    assert no_rdma({}) == ""


def test_a_worker_cannot_deal_the_layers_otherwise() -> None:
    found, typed = over(2), parse({"engine": {"env": {PARTITION: "1,63", "NCCL_DEBUG": "INFO"}}})
    worker = plan_on_node(found, typed, inventory())
    assert PARTITION not in worker.env
    assert worker.env["NCCL_DEBUG"].value == "INFO"


def test_a_worker_has_no_forecast_of_what_others_hold() -> None:
    memory = forecast(over(2), inventory())
    assert memory.fits is None
    assert "the other machines' cards are not known here" in memory.reason


def test_only_as_many_cards_of_a_node_count_as_it_has_ranks() -> None:
    machine = inventory(gpus=turing(2))
    alike = replace(machine, others=(Node("n2", (*turing(2), *named("H200"))),))
    assert PARTITION not in plan(alike).env
    larger = replace(machine, others=(Node("n2", (*named("H200"), *turing(2))),))
    found = plan(larger, policy={"tensor_parallel_size": 1})
    assert int(found.env[PARTITION].value.split(",")[1]) > 32


def offers(config: dict[str, Any], *gpus: Gpu) -> list[str]:
    return [device_name(gpu) for gpu in usable_cards(parse(config), inventory(gpus=gpus))]


def used(gpu: Gpu, mib: int) -> Gpu:
    return replace(gpu, free_mib=gpu.total_mib - mib)


def test_a_node_offers_the_cards_that_its_ranks_would_use_the_freest_first() -> None:
    cards = turing(3)
    display = replace(named("RTX 3070")[0], index=3)
    old = replace(named("V100")[0], index=4)
    parts = [replace(cards[0], mig=True, uuid=f"MIG-{at}", free_mib=9000 + at) for at in (0, 1)]
    assert offers({}, *cards) == ["0", "1", "2"]
    # Too small, too old, in parts; and what is named all the same.
    assert offers({}, *cards, display, old) == ["0", "1", "2"]
    assert offers({}, *parts, *cards[1:]) == ["1", "2"]
    assert offers({}, *parts) == ["MIG-1"]
    assert offers({"engine": {"gpus": [3, 1]}}, *cards, display) == ["1", "3"]
    # A desktop changes nothing, a program that computes does.
    assert offers({}, used(cards[0], 800), *cards[1:]) == ["0", "1", "2"]
    assert offers({}, used(cards[0], 1100), *cards[1:]) == ["1", "2", "0"]
    assert usable_cards(Config(), ON_CPU) == ()
    with pytest.raises(Unplannable, match="cannot use GPU 7: the visible ones are"):
        offers({"engine": {"gpus": [7]}}, *cards)


def test_a_worker_runs_its_ranks_on_the_freest_of_what_it_offers() -> None:
    found, cards = over(2), (used(turing(1)[0], 9000), *turing(4)[1:])
    worker = plan_on_node(found, Config(), inventory(gpus=cards))
    assert worker.env["CUDA_VISIBLE_DEVICES"].value == "1,2"
    with pytest.raises(Unplannable, match="cannot run 2 ranks of the head's plan") as refused:
        plan_on_node(found, parse({"engine": {"gpus": [1]}}), inventory(gpus=cards))
    assert refused.value.failure == "gpu-absent"


def test_the_cpu_build_has_one_part_a_node() -> None:
    found = spread(plan(ON_CPU), alike(2), "10.0.0.1", 7071)
    assert found.value("tensor_parallel_size") == 2
    assert found.value("pipeline_parallel_size") is None


def on_cpus(nodes: int, model: ModelCard, **sections: Any) -> Plan:
    return over(nodes, replace(ON_CPU, model=model), **sections)


def test_a_model_that_so_many_nodes_cannot_split_lies_in_stages_on_the_cpu_build() -> None:
    model = replace(LLAMA_70B_AWQ, heads=32, quantization=None, group_size=0)
    split = ("tensor_parallel_size", "pipeline_parallel_size")
    assert values(on_cpus(2, model), *split) == {split[0]: 2, split[1]: None}
    found = on_cpus(3, model)
    assert values(found, *split) == {split[0]: None, split[1]: 3}
    assert found.settings[split[1]].reason.endswith("[cluster]: it has 32 attention heads")
    assert not all_reduces_over_link(found)
    # vLLM makes the buffers of later stages in a warm-up that this flag leaves out.
    assert found.value("enforce_eager") is not True
    typed = on_cpus(3, model, engine={"extra_args": ["--tensor-parallel-size", "3"]})
    assert values(typed, *split)[split[1]] is None


@pytest.mark.parametrize(
    ("heads", "remedy"), [(32, "set nodes = 2 in [cluster]"), (31, "serve it on one machine")]
)
def test_where_neither_can_be_the_number_of_nodes_that_can_is_named(
    heads: int, remedy: str
) -> None:
    model = replace(LLAMA_70B_AWQ, heads=heads, quantization=None, group_size=0)
    with pytest.raises(Unplannable) as refused:
        on_cpus(3, replace(model, architecture="Zamba2ForCausalLM"))
    assert str(refused.value) == (
        f"cannot plan for 3 nodes: it has {heads} attention heads, and in stages vLLM 0.32.0+cpu"
        f" does not support stages for Zamba2ForCausalLM; {remedy}"
    )


def test_a_split_that_was_typed_stays() -> None:
    found = over(2, engine={"extra_args": ["--pipeline-parallel-size", "4"]})
    assert values(found, "tensor_parallel_size", "pipeline_parallel_size") == {
        "tensor_parallel_size": 1, "pipeline_parallel_size": 4,
    }  # fmt: skip
    assert found.settings["pipeline_parallel_size"].origin == "user"
    assert not [text for text in found.warnings if "cannot use" in text]


def test_typed_flags_of_nodes_are_refused() -> None:
    typed = plan(engine={"extra_args": ["--nnodes", "2"]})
    with pytest.raises(Unplannable, match="extra_args has --nnodes; remove it"):
        spread(typed, alike(2), "10.0.0.1", 7071)


def test_only_the_head_answers_and_each_node_has_its_address() -> None:
    whole = over(2)
    head, worker = (
        plan_of_rank(whole, NodePlace(0, "10.0.0.1", "eth0")),
        plan_of_rank(whole, NodePlace(1, "10.0.0.2", "ib0")),
    )
    assert (head.value("node_rank"), head.value("headless")) == (0, None)
    assert (worker.value("node_rank"), worker.value("headless")) == (1, True)
    env = {name: setting.value for name, setting in worker.env.items()}
    assert env["VLLM_HOST_IP"] == "10.0.0.2"
    assert (env["GLOO_SOCKET_IFNAME"], env["NCCL_SOCKET_IFNAME"]) == ("ib0", "=ib0")
    assert (
        "NCCL_SOCKET_IFNAME"
        not in plan_of_rank(spread(plan(ON_CPU), alike(2), "a", 1), NodePlace(1, "b", "c")).env
    )


def test_the_operators_own_variables_win() -> None:
    typed = plan(engine={"env": {"NCCL_SOCKET_IFNAME": "=ib1"}})
    assert (
        plan_of_rank(typed, NodePlace(1, "10.0.0.2", "ib0")).env["NCCL_SOCKET_IFNAME"].value
        == "=ib1"
    )


def test_without_a_common_fabric_nccl_does_not_look_for_one() -> None:
    why = "NCCL finds no InfiniBand or RoCE on gpu2"
    found = spread(plan(), alike(2), "10.0.0.1", 7071, why)
    assert found.env["NCCL_IB_DISABLE"] == Setting("1", "policy", why)
    assert plan_of_rank(found, NodePlace(1, "10.0.0.2", "eth0")).env["NCCL_IB_DISABLE"].value == "1"
    assert "NCCL_IB_DISABLE" not in spread(plan(), alike(2), "10.0.0.1", 7071, "").env
    assert "NCCL_IB_DISABLE" not in spread(plan(ON_CPU), alike(2), "10.0.0.1", 7071, why).env
    # One that is tried again knows nothing of the devices of its last start.
    other = replace(found, taken=(Taken("mtp-off"),))
    assert "NCCL_IB_DISABLE" not in spread(other, alike(2), "10.0.0.1", 7071, "").env
    later = spread(other, alike(2), "10.0.0.1", 7071, "no node has InfiniBand or RoCE")
    assert later.env["NCCL_IB_DISABLE"].reason == "no node has InfiniBand or RoCE"
    typed = plan(engine={"env": {"NCCL_IB_DISABLE": "0"}})
    assert spread(typed, alike(2), "10.0.0.1", 7071, why).env["NCCL_IB_DISABLE"].value == "0"


def test_stages_on_all_nodes_keep_sums_inside_them() -> None:
    assert not all_reduces_over_link(over(2))
    assert all_reduces_over_link(spread(plan(ON_CPU), alike(2), "10.0.0.1", 7071))
    typed = plan(engine={"extra_args": ["--pipeline-parallel-size", "2"]})
    assert all_reduces_over_link(spread(typed, alike(4), "10.0.0.1", 7071))
    assert not all_reduces_over_link(plan())


@pytest.mark.parametrize(
    ("env", "interface", "found"),
    [
        ({}, "eth0", False),
        ({}, "x", True),  # tried with torch 2.13: it ignores the name
        ({"GLOO_SOCKET_IFNAME": ""}, "eth0", True),
        ({"GLOO_SOCKET_IFNAME": "ib0"}, "x", False),
    ],
)
def test_gloo_goes_by_the_hosts_name_without_an_interface(
    env: dict[str, str], interface: str, found: bool
) -> None:
    assert by_host_name(env, interface) is found


def test_plans_of_other_nodes_are_other_plans() -> None:
    assert over(2).identity == over(2).identity != over(3).identity


@pytest.mark.parametrize(
    ("title", "rank"),
    [
        ("VLLM::Worker_TP1", "TP1"),
        ("VLLM::Worker_PP1_TP0", "PP1_TP0"),
        ("VLLM::EngineCore", "EngineCore"),
        ("VLLM::Worker", ""),
        ("ray::RayWorkerProc.run", UNTITLED),
        ("ray::IDLE", ""),
        ("/usr/bin/python -m vllm.entrypoints.cli.main serve m", ""),
    ],
)
def test_ranks_are_read_from_the_titles_of_processes(title: str, rank: str) -> None:
    assert rank_of(title) == rank


def test_ranks_of_rays_actors_are_read_from_their_lines() -> None:
    lines = [
        "(EngineCore pid=7) INFO 11-20 08:53:06 [core.py:133] Initializing a V1 LLM engine",
        "(Worker pid=17) INFO 11-20 08:53:12 [parallel_state.py:1200] rank 1 in world size 2",
        "(Worker pid=17) (Worker_PP1 pid=17) INFO 11-20 08:53:13 [gpu_model_runner.py:68] a",
        "(Worker_PP0_TP1 pid=18) INFO 11-20 08:53:13 [gpu_model_runner.py:68] b",
        "a prompt: (Worker_PP9 pid=19) INFO",
    ]
    assert ranks_in(lines) == {17: "PP1", 18: "PP0_TP1"}
