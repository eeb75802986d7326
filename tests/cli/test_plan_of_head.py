"""`caovanctl plan` on the head of a cluster: the plan over all nodes, with each rank's forecast."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters import model_folder
from caovand.cli import plan as plan_verb
from caovand.cli.common import survey
from caovand.cli.common.errors import Exit
from caovand.core.reporting.wire import Reply
from caovand.engines.vllm.memory.shards import PARTITION
from tests.cli.cluster.test_nodes_and_check import FACTS, cluster, node
from tests.cli.conftest import Ctl
from tests.cli.fake_daemon import FakeDaemon, status
from tests.core.machines import CPU, CUDA, HOST, QWEN_27B_AWQ, named

SMALL = {
    "name": "NVIDIA GeForce RTX 2080 Ti", "memory_mib": 11264, "compute_capability": "7.5",
    "count": 1,
}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The head's, of a machine with one RTX 3090."""
    machine = survey.SurveyedMachine(named("RTX 3090"), HOST, CUDA)
    monkeypatch.setattr(model_folder, "read_model", lambda path, weights: QWEN_27B_AWQ)
    monkeypatch.setattr(plan_verb, "inspect", lambda *asked, **named: machine)
    path = tmp_path / "caovan.toml"
    head = '[cluster]\nrole = "head"\nhead = "10.0.0.1:7070"\n'
    path.write_text(f'[model]\npath = "{tmp_path}"\n{head}')
    return path


@pytest.fixture
def joined(daemon: FakeDaemon, config: Path) -> FakeDaemon:
    """Its daemon, that a node with a smaller card has joined."""
    beside = {"version": "1", "pid": 7, "config": str(config)}
    daemon.answers["status"] = status(daemon=beside, engine_pid=None)
    facts = {**FACTS, "cards": [SMALL]}
    daemon.answers["cluster"] = cluster(
        nodes=[node("gpu1", "here"), node("gpu0", "lost"), node("gpu2", "joined", facts=facts)]
    )
    return daemon


def split(found: Any) -> list[Any]:
    names = ("tensor_parallel_size", "pipeline_parallel_size", "nnodes", "master_port")
    return [found["settings"].get(name, {}).get("value") for name in names]


def test_a_node_that_has_joined_counts_with_its_cards(joined: FakeDaemon, ctl: Ctl) -> None:
    said = ctl("plan", "--json")
    assert said.code == Exit.DONE, said.err
    assert split(said.json) == [1, 2, 2, 7071]
    ranks = said.json["memory"]["ranks"]
    assert [(one["node"], one["gpus"]) for one in ranks] == [("head", [0]), ("gpu2", [0])]
    first, last = map(int, said.json["env"][PARTITION].split(","))
    assert ranks[0]["layers"] == [0, first - 1]
    assert first > 2 * last
    shown = ctl("plan").out
    assert f"stage 0 on card 0 of head: layers 0 to {first - 1}" in shown
    assert f"stage 1 on card 0 of gpu2: layers {first} to 63" in shown
    assert "24.0 GiB\n" in shown
    assert "11.0 GiB\n" in shown


@pytest.mark.parametrize(
    "answer",
    [
        cluster(nodes=[node("gpu1", "here")]),
        cluster(nodes=[node("gpu1", "here"), node("gpu2", "joined", facts={})]),
        cluster(nodes=[node("gpu2", "joined", facts={**FACTS, "cards": [{"name": "x"}]})]),
        Reply("", code="forbidden", message="cannot answer"),
    ],
)
def test_one_that_has_not_is_taken_to_have_the_heads(
    joined: FakeDaemon, ctl: Ctl, answer: Any
) -> None:
    joined.answers["cluster"] = answer
    said = ctl("plan", "--json")
    assert split(said.json) == [1, 2, 2, 7071]
    ranks = said.json["memory"]["ranks"]
    assert [one["node"] for one in ranks] == ["head", "node 2"]
    assert PARTITION not in said.json["env"]


def planned(
    bytes_s: float | None, *names: str, no_rdma: str = "", ram_mib: int = 64000
) -> dict[str, Any]:
    link = {"bytes_s": bytes_s, "round_trip_s": 1e-5} if bytes_s else None
    return {"nodes": list(names), "ram_mib": ram_mib, "link": link, "no_rdma": no_rdma}


def of_two(found: dict[str, Any]) -> dict[str, Any]:
    """The answer of a head whose next start has one of two workers like itself."""
    card = {**SMALL, "name": "NVIDIA GeForce RTX 3090", "memory_mib": 24576,
            "compute_capability": "8.6"}  # fmt: skip
    facts = {**FACTS, "cards": [card]}
    others = [node(name, "joined", facts=facts) for name in ("gpu2", "gpu3")]
    return cluster(nodes=[node("gpu1", "here"), *others], planned=found)


def warnings(said: Any) -> str:
    return " ".join(said.json["warnings"])


def test_the_measured_link_and_its_fabric_count(joined: FakeDaemon, ctl: Ctl) -> None:
    why = "no node has InfiniBand or RoCE"
    joined.answers["cluster"] = of_two(planned(12.5e9, "gpu3", no_rdma=why))
    said = ctl("plan", "--json")
    assert split(said.json) == [2, None, 2, 7071]
    assert "over this link (12.5 GB/s" in said.json["settings"]["tensor_parallel_size"]["reason"]
    assert said.json["env"]["NCCL_IB_DISABLE"] == "1"
    assert "link" not in warnings(said)
    joined.answers["cluster"] = of_two(planned(0.1e9, "gpu3"))
    said = ctl("plan", "--json")
    assert split(said.json) == [1, 2, 2, 7071]
    assert [one["node"] for one in said.json["memory"]["ranks"]] == ["head", "gpu3"]
    assert "NCCL_IB_DISABLE" not in said.json["env"]
    reason = said.json["settings"]["pipeline_parallel_size"]["reason"]
    assert reason.endswith("that is TCP over their interfaces, but NCCL uses InfiniBand or RoCE")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (of_two(planned(None, "gpu2")), "the link between the nodes has not been checked"),
        (of_two(planned(12.5e9)), "the link between the nodes has not been checked"),
        (cluster(nodes=[node("gpu1", "here")]), "1 of 2 nodes have not joined: they are assumed"),
        (cluster(role="worker"), "the head's daemon, which tracks them, was not asked"),
        (
            Reply("", code="busy", message="cannot answer: too many", hint="try again"),
            "over a slow link: cannot answer: too many; try again",
        ),
        (
            cluster(nodes=[node("gpu2", "joined", facts={**FACTS, "cards": [{"name": "x"}]})]),
            "over a slow link: cannot read a node's facts: cards[0].memory_mib is missing",
        ),
    ],
)
def test_what_is_assumed_is_named_and_nothing_is_called_slow(
    joined: FakeDaemon, ctl: Ctl, answer: Any, text: str
) -> None:
    joined.answers["cluster"] = answer
    said = ctl("plan", "--json")
    assert text in warnings(said)
    assert "assumed" in warnings(said)
    reason = said.json["settings"]["pipeline_parallel_size"]["reason"]
    assert "the speed of their link is unknown" in reason
    assert text in " ".join(ctl("plan").out.split())


def test_without_a_daemon_nodes_are_planned_for_all_the_same(config: Path, ctl: Ctl) -> None:
    said = ctl("plan", "--config", str(config), "--json")
    assert split(said.json) == [1, 2, 2, 7071]
    assert len(said.json["memory"]["ranks"]) == 2
    assert "the head's daemon, which tracks them, was not asked" in warnings(said)


def test_a_node_that_is_not_known_has_no_card_for_a_display(
    config: Path, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    display = replace(named("RTX 3070")[0], index=0)
    cards = (display, replace(named("RTX 3090")[0], index=1))
    monkeypatch.setattr(
        plan_verb, "inspect", lambda *asked, **named: survey.SurveyedMachine(cards, HOST, CUDA)
    )
    found = ctl("plan", "--config", str(config), "--json").json
    assert split(found) == [1, 2, 2, 7071]
    assert PARTITION not in found["env"], "a 3090 on each"


def test_the_cpu_build_is_split_over_the_nodes(
    config: Path, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = survey.SurveyedMachine((), HOST, CPU)
    monkeypatch.setattr(plan_verb, "inspect", lambda *asked, **named: machine)
    settings = ctl("plan", "--config", str(config), "--json").json["settings"]
    assert settings["tensor_parallel_size"]["value"] == settings["nnodes"]["value"] == 2
    assert "pipeline_parallel_size" not in settings


def test_a_worker_makes_no_plan_of_its_own(config: Path, ctl: Ctl) -> None:
    """It would be that of a machine alone, which never runs there."""
    config.write_text(config.read_text().replace('"head"', '"worker"', 1))
    refused = ctl("plan", "--config", str(config))
    assert refused.code == Exit.FAILED
    assert "this machine is a worker of 10.0.0.1:7070, and the head makes the plan" in refused.err
    assert "run `caovanctl plan` on the head" in refused.err


def test_the_node_with_the_least_host_memory_decides_what_goes_there(
    joined: FakeDaemon, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = replace(QWEN_27B_AWQ, layer_types=())
    monkeypatch.setattr(model_folder, "read_model", lambda path, weights: unknown)
    machine = survey.SurveyedMachine((), HOST, CPU)
    monkeypatch.setattr(plan_verb, "inspect", lambda *asked, **named: machine)
    joined.answers["cluster"] = of_two(planned(12.5e9, "gpu3", ram_mib=4096))
    said = ctl("plan", "--json")
    assert said.json["settings"]["kv_cache_memory_bytes"]["value"] == 256 << 20


def test_a_plan_over_ray_is_shown_as_it_will_run(
    config: Path, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(config.read_text() + 'executor = "ray"\n')
    refused = ctl("plan", "--config", str(config))
    assert refused.code == Exit.FAILED
    assert "cannot serve from several nodes over Ray: Ray is not installed" in refused.err
    config.write_text(config.read_text() + "min_nodes = 1\n")
    alone = ctl("plan", "--config", str(config), "--json")
    assert split(alone.json) == [1, None, None, None], "as the daemon serves then"
    (warning,) = (one for one in alone.json["warnings"] if "Ray" in one)
    assert warning.endswith("until then the head serves alone, because [cluster] min_nodes is 1")
    assert "assumed" not in warnings(alone)
    machine = survey.SurveyedMachine(named("RTX 3090"), HOST, replace(CUDA, ray="2.60.0"))
    monkeypatch.setattr(plan_verb, "inspect", lambda *asked, **named: machine)
    said = ctl("plan", "--config", str(config), "--json")
    assert said.code == Exit.DONE, said.err
    assert split(said.json) == [1, 2, 2, 7071]
    assert said.json["settings"]["distributed_executor_backend"]["value"] == "ray"
    words = said.json["argv"]
    assert words[words.index("--own") + 1] == "10.0.0.1"
