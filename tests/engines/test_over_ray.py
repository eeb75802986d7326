"""A plan over nodes whose ranks Ray starts: who refuses it, and what runs on each node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caovand.core.config.schema import Config
from caovand.core.engine.record import NodePlace
from caovand.core.facts.inventory import EngineInfo, Inventory, ModelCard, Node
from caovand.core.plan import Plan, Unplannable
from caovand.engines.vllm.command import SERVE, build
from caovand.engines.vllm.memory.shards import PARTITION
from caovand.engines.vllm.nodes import LAUNCHER, plan_of_rank, plan_on_node, ray_refusal, spread
from caovand.engines.vllm.planning.decisions import forecast
from tests.core.machines import CPU, CUDA, GEMMA_4, QWEN_27B_AWQ, alike, inventory, named, plan

BACKEND = "--distributed-executor-backend"
WITH_RAY = replace(CUDA, ray="2.60.0")


def over(nodes: int, **sections: object) -> Plan:
    return spread_over(alike(nodes), **sections)


def spread_over(machine: Inventory, **sections: object) -> Plan:
    return spread(plan(machine, **sections), machine, "10.0.0.1", 7071, executor="ray")


@pytest.mark.parametrize(
    ("executor", "engine", "why"),
    [
        ("mp", CPU, ""),
        ("mp", CUDA, ""),
        ("ray", WITH_RAY, ""),
        ("ray", replace(CPU, ray="2.60.0"), "vLLM does not support Ray on CPUs"),
        ("ray", replace(WITH_RAY, version="0.20.2"), "from 0.21 on, but this is 0.20.2"),
        (
            "ray",
            replace(CUDA, ray="2.51.1"),
            "Ray 2.51.1 runs code from anyone who can reach it; 2.52",
        ),
        (
            "ray",
            replace(CUDA, ray="2.51.1"),
            f"run `sudo {CUDA.python} -m pip install --upgrade ray`",
        ),
        ("ray", replace(CUDA, ray="2.52.0"), ""),
        ("ray", CUDA, f"not installed in the engine's environment; run `sudo {CUDA.python} -m pip"),
    ],
)
def test_ray_needs_cards_and_ray(executor: str, engine: EngineInfo, why: str) -> None:
    found = ray_refusal(executor, engine)
    assert (why in str(found)) if why else found is None
    assert not why or 'set [cluster] executor = "mp"' in str(found)


def test_the_head_starts_vllm_over_ray_and_a_worker_starts_ray_alone() -> None:
    whole = over(2)
    head = build(
        plan_of_rank(whole, NodePlace(0, "10.0.0.1", "eth0", ("10.0.0.2",), "secret")), CUDA
    )
    worker = build(plan_of_rank(whole, NodePlace(1, "10.0.0.2", "eth0", token="secret")), CUDA)
    ray = (CUDA.python, LAUNCHER, "--address", "10.0.0.1:7071")
    assert worker.argv == (*ray, "--own", "10.0.0.2", "--cards", "2")
    assert head.argv[:9] == (*ray, "--own", "10.0.0.1", "--cards", "2", "--")
    assert head.argv[9:13] == (CUDA.python, *SERVE)
    at = head.argv.index("--distributed-executor-backend")
    assert head.argv[at + 1] == "ray"
    for flag in ("--nnodes", "--node-rank", "--master-addr", "--master-port", "--headless"):
        assert flag not in head.argv
    assert head.env["CAOVAN_RAY_NODES"] == "10.0.0.1,10.0.0.2"
    assert "CAOVAN_RAY_NODES" not in worker.env
    for env in (head.env, worker.env):
        assert (env["RAY_AUTH_MODE"], env["RAY_AUTH_TOKEN"]) == ("token", "secret")
    assert "secret" not in " ".join((*head.argv, *head.shown))
    assert worker.env["VLLM_HOST_IP"] == "10.0.0.2"


def test_the_split_and_the_forecast_are_those_of_vllms_own_nodes() -> None:
    machine = alike(2)
    found, usual = over(2), spread(plan(machine), machine, "10.0.0.1", 7071)
    assert {**usual.settings, "distributed_executor_backend": None} == {
        **found.settings, "distributed_executor_backend": None,
    }  # fmt: skip
    assert forecast(found, machine).ranks == forecast(usual, machine).ranks


def test_a_plan_for_vllms_own_nodes_has_nothing_of_ray() -> None:
    found = plan_of_rank(
        spread(plan(), alike(2), "10.0.0.1", 7071), NodePlace(0, "10.0.0.1", "eth0", token="secret")
    )
    command = build(found, WITH_RAY)
    assert command.argv[1:4] == SERVE
    assert not [name for name in command.env if "RAY" in name]


def test_alone_the_head_needs_no_ray() -> None:
    assert build(plan(), WITH_RAY).argv[1:4] == SERVE


@pytest.mark.parametrize(("model", "dealt"), [(QWEN_27B_AWQ, True), (GEMMA_4, False)])
def test_what_ray_could_deal_to_another_node_is_refused(model: ModelCard, dealt: bool) -> None:
    """Also where vLLM's own rule deals the layers: the first and the last stage hold more."""
    machine = inventory(model, gpus=named("RTX 3090"))
    others = tuple(Node(name, named("A10")) for name in ("n2", "n3"))
    three = replace(machine, others=others)
    assert (PARTITION in plan(three).env) is dealt
    with pytest.raises(Unplannable, match="Ray can assign one node's layers to another"):
        spread_over(three)
    assert spread_over(replace(machine, others=others[:1])), "Ray has no choice"
    typed = {"extra_args": ["--tensor-parallel-size", "3"]}
    assert spread_over(three, engine=typed), "no layers are dealt"


def test_stages_that_were_dealt_by_hand_are_refused_as_such() -> None:
    typed = {"env": {PARTITION: "20,20,24"}}
    with pytest.raises(Unplannable) as refused:
        over(3, engine=typed)
    assert str(refused.value) == (
        "cannot plan for 3 nodes over Ray: [engine] env has VLLM_PP_LAYER_PARTITION, but Ray "
        "can run a stage on a different node than its rank's; remove it, or set [cluster] "
        'executor = "mp"'
    )
    assert over(2, engine={"env": {PARTITION: "20,44"}})
    assert over(3)


def test_ray_is_started_over_ipv4() -> None:
    with pytest.raises(Unplannable, match="fd00::1 is IPv6"):
        spread(plan(), alike(2), "fd00::1", 7071, executor="ray")
    with pytest.raises(Unplannable, match="fd00::1 is IPv6"):
        spread(plan(), alike(2), "gpu1.example", 7071, executor="ray", address="fd00::1")
    assert spread(plan(), alike(2), "gpu1.example", 7071, executor="ray", address="10.0.0.1")


def test_typed_flags_that_ray_decides_are_refused() -> None:
    with pytest.raises(Unplannable, match="extra_args has --data-parallel-size; remove it"):
        over(2, engine={"extra_args": ["--data-parallel-size", "2"]})
    with pytest.raises(Unplannable) as refused:
        over(2, engine={"extra_args": [BACKEND, "mp"]})
    assert str(refused.value).endswith(
        f"extra_args has {BACKEND} mp; remove it, and set [cluster] executor instead, now ray"
    )


def test_the_executor_may_be_typed_as_well() -> None:
    typed = {"extra_args": [BACKEND, "ray"]}
    argv = build(over(2, engine=typed), WITH_RAY).argv
    assert argv.count(BACKEND) == 1
    usual = {"extra_args": [BACKEND, "mp"]}
    machine = alike(2)
    assert spread(plan(machine, engine=usual), machine, "10.0.0.1", 7071).value("nnodes") == 2
    with pytest.raises(Unplannable, match="executor instead, now mp"):
        spread(plan(machine, engine=typed), machine, "10.0.0.1", 7071)


def test_a_workers_own_cards_are_those_that_ray_offers_there() -> None:
    worker = plan_on_node(over(2), Config(), inventory())
    assert worker.env["CUDA_VISIBLE_DEVICES"].value == "0,1"
