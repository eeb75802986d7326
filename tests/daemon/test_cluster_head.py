"""Which links a head checks, and when; and its reaction to a failed one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from caovand.adapters.network.cluster_key import KeyPairs
from caovand.core.cluster.link import LinkState
from caovand.core.cluster.messages import Report
from caovand.core.cluster.node import NodeCard, NodeFacts
from caovand.core.config.parser import parse
from caovand.core.config.schema import Config
from caovand.core.facts.checks import CheckResult
from caovand.core.lifecycle.state import Snapshot, State
from caovand.core.problem import ProblemError
from caovand.core.reporting.wire import MAX_BYTES, Reply, encode_reply
from caovand.daemon.cluster import document, team
from caovand.daemon.cluster.head import HeadPart
from caovand.daemon.cluster.part import Membership
from caovand.daemon.cluster.team import Quorum
from caovand.daemon.cluster.workers import Worker
from caovand.daemon.shared import now
from caovand.daemon.start.inspection import StartObstacle
from caovand.engines.vllm.engine import ENGINE
from caovand.engines.vllm.planning.decisions import forecast
from tests.core.machines import inventory, plan
from tests.core.nodes import HEAD, WORKER
from tests.ports import free_port

MEMORY = forecast(plan(), inventory())
GOOD = LinkState("10.0.0.1", 7071, connect_s=2e-4)
CLOSED = replace(GOOD, failures={"reach-worker": "no answer within 4 s"})


class Checked:
    """A head of two nodes with these workers, whose links turn out as `found` says."""

    def __init__(self, nodes: int = 2, least: int | None = None, **found: LinkState) -> None:
        self.found = found
        self.checks: list[list[str]] = []
        self.during: Callable[[], None] = lambda: None
        run: Any = SimpleNamespace(child=None, reported={}, forecast=MEMORY)
        self.slot: Any = SimpleNamespace(
            notice=lambda *_: None, snapshot=Snapshot(state=State.HOLD), apply=lambda _: None,
            engine=ENGINE, config=Config(), run=run, failures=SimpleNamespace(store=None),
        )  # fmt: skip
        self.port = free_port()
        pairs = KeyPairs(b"", b"", b"", b"")
        assert ENGINE.nodes is not None
        member = Membership("head1", f"127.0.0.1:{self.port}", pairs, ENGINE.nodes)
        self.head = HeadPart(member, Quorum(nodes, least or nodes, 60.0), self.slot)
        self.selection = self.head._selection
        self.selection.facts = HEAD
        self.head._links.probe_workers = self._check  # type: ignore[method-assign]
        for name in found:
            self.join(name)

    def join(self, name: str, facts: NodeFacts = WORKER, **report: Any) -> None:
        made = replace(facts, name=name)
        told = Report(name, **{"boot": f"boot of {name}", **report})
        self.head._workers.by_name[name] = Worker(b"", told, now(), now(), made)

    async def _check(self, own: str, workers: Collection[Worker]) -> None:
        assert own == HEAD.address
        assert self.head._links.turn.locked()
        during, self.during = self.during, lambda: None
        during()
        self.checks.append([worker.name for worker in workers])
        for worker in workers:
            self.head._workers.keep_link(worker, self.found[worker.name])

    def choose(self) -> dict[str, int]:
        """What an inspection chooses."""

        async def work() -> None:
            async with self.head._links.turn:
                await self.selection._choose(HEAD)

        asyncio.run(work())
        return self.selection.team.ranks

    def check(self) -> list[list[str]]:
        asyncio.run(self.head.check_links())
        return self.checks


def test_each_start_checks_all_workers_that_can_serve() -> None:
    checked = Checked(n2=GOOD, n3=GOOD)
    checked.join("n4", replace(WORKER, torch="2.12.0"))
    assert checked.choose() == {"n2": 1}
    assert checked.choose() == {"n2": 1}
    assert checked.checks == [["n2", "n3"]] * 2


def test_another_worker_serves_where_a_link_does_not_work() -> None:
    checked = Checked(n2=CLOSED, n3=GOOD)
    assert checked.choose() == {"n3": 1}
    assert checked.choose() == {"n3": 1}
    assert checked.checks == [["n2", "n3"]] * 2, "what failed is checked anew"


def test_without_another_one_the_start_waits_and_says_why() -> None:
    checked = Checked(n2=CLOSED)
    with pytest.raises(StartObstacle, match="node n2: head1 cannot connect to n2 at") as refused:
        checked.choose()
    assert refused.value.hold
    checked.found["n2"] = GOOD
    assert checked.choose() == {"n2": 1}, "it is checked anew"


def test_a_worker_that_differs_is_not_tried() -> None:
    checked = Checked(n2=GOOD)
    checked.join("n2", replace(WORKER, torch="2.12.0"))
    with pytest.raises(StartObstacle, match="torch differs"):
        checked.choose()
    assert checked.checks == []


def test_a_worker_that_is_started_anew_meanwhile_is_tried_anew() -> None:
    checked = Checked(n2=GOOD)
    checked.during = lambda: checked.join("n2", boot="another")
    checked.choose()
    assert checked.checks == [["n2"], ["n2"]]
    assert checked.selection.team.workers["n2"].boot == "another"


def test_one_whose_link_fails_counts_as_missing_over_several_attempts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = now()
    monkeypatch.setattr(team, "now", lambda: at)
    checked = Checked(3, 2, n2=GOOD, n3=CLOSED)
    for _ in range(2):
        with pytest.raises(StartObstacle):
            checked.choose()
        at += 40.0
    assert checked.choose() == {"n2": 1}
    checked.found["n3"] = GOOD
    assert checked.choose() == {"n2": 1, "n3": 2}
    checked.found["n3"] = CLOSED
    with pytest.raises(StartObstacle):
        checked.choose()


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        ({}, "NCCL finds no InfiniBand or RoCE on n2"),
        ({"mlx5_1": "InfiniBand"}, ""),
    ],
)
def test_the_fabric_of_those_that_serve_counts(devices: dict[str, str], why: str) -> None:
    checked = Checked(n2=GOOD, n3=GOOD)
    checked.selection.facts = replace(HEAD, rdma={"mlx5_0": "InfiniBand"})
    checked.join("n2", replace(WORKER, rdma=devices))
    checked.choose()
    assert checked.selection._rdma_obstacle == why


FABRIC = {"mlx5_0": "InfiniBand"}
WITHOUT_IB = parse({"engine": {"env": {"NCCL_IB_DISABLE": "1"}}})


def with_fabric(**nodes: dict[str, str]) -> Checked:
    """A head with a fabric and workers with these devices, all on slow Ethernet as well."""
    checked = Checked(1 + len(nodes), **dict.fromkeys(nodes, GOOD))
    checked.selection.facts = replace(HEAD, rdma=FABRIC, speed_mbit=100)
    for name, devices in nodes.items():
        checked.join(name, replace(WORKER, rdma=devices, speed_mbit=100))
    return checked


def slow(checked: Checked) -> list[str]:
    """The interfaces that are found to be slow."""
    found = [one["text"].partition(": ")[0] for one in checked.head.describe()["checks"]]
    return [text for text in found if " runs at " in text]


def test_a_slow_interface_counts_where_any_node_keeps_all_from_the_fabric() -> None:
    over_it = with_fabric(n2=FABRIC, n3=FABRIC)
    over_it.choose()
    assert slow(over_it) == []
    lacking = with_fabric(n2=FABRIC, n3={})
    lacking.choose()
    nodes = ("head1", "n2", "n3")
    assert sorted(slow(lacking)) == [f"eth0 of {name} runs at 100 Mbit/s" for name in nodes]


def test_an_operator_that_keeps_nccl_from_the_fabric_is_believed() -> None:
    nodes = ("head1", "n2")
    checked = with_fabric(n2=FABRIC)
    assert checked.head.describe()["planned"]["no_rdma"] == ""
    checked.slot.config = WITHOUT_IB
    checked.choose()
    assert checked.selection._rdma_obstacle == "[engine] env sets NCCL_IB_DISABLE"
    assert sorted(slow(checked)) == [f"eth0 of {name} runs at 100 Mbit/s" for name in nodes]


def test_a_spare_worker_without_the_fabric_keeps_nobody_from_it() -> None:
    checked = with_fabric(n2=FABRIC)
    checked.found["n3"] = GOOD
    checked.join("n3", WORKER)
    checked.choose()
    assert checked.selection._rdma_obstacle == ""


def test_what_a_plan_would_count_with_is_in_the_document() -> None:
    checked = Checked(n2=CLOSED, n3=GOOD)
    checked.selection.facts = replace(HEAD, rdma={"mlx5_0": "InfiniBand"})
    why = "NCCL finds no InfiniBand or RoCE on n2"
    assert checked.head.describe()["planned"] == {
        "nodes": ["n2"], "ram_mib": 64000, "link": None, "no_rdma": why,
    }  # fmt: skip
    checked.choose()
    checked.selection.facts = HEAD
    assert checked.head.describe()["planned"] == {
        "nodes": ["n3"],
        "ram_mib": 64000,
        "link": {"bytes_s": 1.175e9, "round_trip_s": 2e-4},
        "no_rdma": "no node has InfiniBand or RoCE",
    }


def test_a_head_that_could_not_be_inspected_claims_no_fabric() -> None:
    checked = Checked(n2=GOOD)
    checked.choose()
    assert checked.head.describe()["planned"]["link"] is not None
    checked.selection.facts = None
    found = checked.head.describe()["planned"]
    assert (found["nodes"], found["link"]) == (["n2"], None)


H100 = NodeCard("NVIDIA H100 80GB HBM3", 81559, (9, 0), 81559)


@pytest.mark.parametrize("cards", [4, 8])
@pytest.mark.parametrize("found", [GOOD, CLOSED])
def test_one_answer_has_room_for_64_nodes(cards: int, found: LinkState) -> None:
    """And for their checks."""
    names = [f"gpu-node-{number:03}" for number in range(63)]
    checked = Checked(64, **dict.fromkeys(names, found))
    checked.selection.facts = replace(HEAD, cards=(H100,) * cards)
    ranks = tuple((f"TP{number + 500}", 4194000 + number, number) for number in range(cards))
    sizes = {"weights_gib": 4.325, "kv_gib": 70.381}
    for name in names:
        checked.join(name, replace(WORKER, cards=(H100,) * cards), ranks=ranks, sizes=sizes)
    checked.check()
    told = checked.head.describe()
    frame = encode_reply(Reply("0" * 64, result=told))
    assert len(frame) <= MAX_BYTES
    assert [len(node["ranks"]) for node in told["nodes"][1:]] == [cards] * 63
    assert [node["gpus"] for node in told["nodes"][1:]] == [list(range(cards))] * 63
    assert [node["reported"] for node in told["nodes"][1:]] == [sizes] * 63
    checks = told["checks"]
    assert [one["verdict"] for one in checks] == ["PASS" if found == GOOD else "FAIL"] * 63


@pytest.mark.parametrize(("gone", "listed"), [(0, 0), (40, 40), (150, None)])
def test_nodes_that_are_lost_leave_an_answer_its_room(gone: int, listed: int | None) -> None:
    names = [f"gpu-node-{number:03}.example.net" for number in range(63)]
    checked = Checked(64, **dict.fromkeys(names, GOOD))
    ranks = tuple((f"PP63_TP{number}", 4194000 + number, number) for number in range(8))
    report = {"ranks": ranks, "sizes": {"stage_63_weights_gib": 4.325, "stage_63_kv_gib": 70.381}}
    eight = replace(WORKER, cards=(H100,) * 8)
    checked.selection.facts = replace(HEAD, cards=(H100,) * 8)
    lost = [f"gpu-node-{number:03}.example.org" for number in range(gone)]
    for name in (*names, *lost):
        checked.join(name, eight, **report)
    for at, name in enumerate(lost):
        checked.head._workers.by_name[name].heard -= 1000.0 + at
    told = checked.head.describe()
    assert len(encode_reply(Reply("0" * 64, result=told))) <= MAX_BYTES
    states = [node["state"] for node in told["nodes"]]
    assert (states.count("here"), states.count("joined")) == (1, 63)
    left = [node for node in told["nodes"] if node["state"] == "lost"]
    assert all(not node["ranks"] and not node["facts"] for node in left)
    unlisted = [one["text"] for one in told["checks"] if "not listed" in one["text"]]
    if listed is not None:
        assert (len(left), unlisted) == (listed, [])
    else:
        assert left
        assert [node["name"] for node in left] == lost[: len(left)], "the latest are listed"
        text = f"full: {gone - len(left)} lost or refused nodes are not listed"
        assert [text in one for one in unlisted] == [True]


def test_the_worst_findings_come_first_and_what_is_left_out_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(document, "AVAILABLE_BYTES", 200)
    found = [
        (verdict, CheckResult("cluster", verdict, verdict * 5, "fix"))
        for verdict in ("PASS", "WARN", "FAIL", "WARN")
    ]
    shown = document.with_checks({"nodes": []}, found)["checks"]
    assert [one["verdict"] for one in shown] == ["FAIL", "WARN", "WARN"]
    assert shown[-1]["text"] == "the response is full: 2 more are not shown"
    shown = document.with_checks({"nodes": [], "x": "x" * 200}, found[:1])["checks"]
    assert [(one["verdict"], one["text"], one["remedy"]) for one in shown] == [
        ("PASS", "the response is full: 1 more are not shown, all PASS", "")
    ]


def test_a_head_that_cannot_listen_fails_the_check() -> None:
    checked = Checked()
    with pytest.raises(ProblemError):
        asyncio.run(checked.head._listen())
    (found,) = checked.head.describe()["checks"]
    assert (found["node"], found["verdict"]) == ("head1", "FAIL")
    assert found["text"].startswith(f"cannot listen for workers: 127.0.0.1:{checked.port} is this")
    assert found["remedy"] == "set [cluster] head to an address that workers can reach"


def test_the_check_connects_to_all_each_time() -> None:
    checked = Checked(3, n2=GOOD, n3=CLOSED)
    assert checked.check() == [["n2", "n3"]]
    assert checked.check() == [["n2", "n3"]] * 2
    assert [one["verdict"] for one in checked.head.describe()["checks"]] == ["FAIL", "PASS"]


@pytest.mark.parametrize("state", [State.STOPPED, State.FAILED, State.BACKOFF])
def test_the_check_tries_in_all_states_without_an_engine(state: State) -> None:
    checked = Checked(n2=GOOD)
    checked.slot.snapshot = Snapshot(state=state)
    assert checked.check() == [["n2"]]


def serves(checked: Checked) -> None:
    checked.slot.snapshot = Snapshot(state=State.SERVING)


def starts(checked: Checked) -> None:
    checked.slot.snapshot = Snapshot(state=State.STARTING)


def is_inspected(checked: Checked) -> None:
    checked.slot.snapshot = Snapshot(state=State.HOLD, inspecting=True)


def has_processes(checked: Checked) -> None:
    checked.slot.run.child = SimpleNamespace(members=[SimpleNamespace(pid=1)])


def runs_there(checked: Checked) -> None:
    checked.join("n2", running="start")


@pytest.mark.parametrize(
    "busy", [serves, starts, is_inspected, has_processes, runs_there], ids=lambda one: one.__name__
)
def test_nothing_is_tried_where_an_engine_is_or_may_come(busy: Callable[[Checked], None]) -> None:
    checked = Checked(n2=GOOD)
    busy(checked)
    assert checked.check() == []
