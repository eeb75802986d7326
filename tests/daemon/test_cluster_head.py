"""Which links a head tries, and when; what it makes of one that does not work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest

from caovand.adapters.cluster_key import Pairs
from caovand.core.cluster.link import Link, Trial
from caovand.core.cluster.messages import Report
from caovand.core.cluster.node import Card, NodeFacts
from caovand.core.config import Config
from caovand.core.config_parser import parse
from caovand.core.facts.checks import CheckResult
from caovand.core.facts.inventory import Network
from caovand.core.lifecycle.events import Progressed
from caovand.core.lifecycle.state import Snapshot, State
from caovand.core.problem import ProblemError
from caovand.core.reporting.wire import MAX_BYTES, Reply, encode_reply
from caovand.daemon.cluster import choosing, document
from caovand.daemon.cluster.asking import Unreported
from caovand.daemon.cluster.choosing import Quorum
from caovand.daemon.cluster.head import Head, Member
from caovand.daemon.cluster.measuring import Memory
from caovand.daemon.cluster.trials import Pace, Peer
from caovand.daemon.inspection import Obstacle
from caovand.daemon.shared import now
from caovand.engines.vllm.engine import ENGINE
from caovand.engines.vllm.planning.decisions import forecast
from tests.core.machines import inventory, plan
from tests.core.nodes import HEAD, WORKER
from tests.daemon_process import free_port

MEMORY = forecast(plan(), inventory())
GOOD = Link("10.0.0.1", 7071, up_bytes_s=1.2e9, down_bytes_s=1.2e9)
CLOSED = replace(GOOD, to_worker="no answer within 4 s")
SLOW = replace(GOOD, up_bytes_s=50e6)


class Tried:
    """A head of two nodes with these workers, whose links turn out as `found` says."""

    def __init__(self, nodes: int = 2, least: int | None = None, **found: Link) -> None:
        self.found = found
        self.between: dict[tuple[str, str], Link] = {}
        self.pairs: list[tuple[str, str]] = []
        self.names: list[str] = []
        self.again: list[bool] = []
        self.paces: list[Pace] = []
        self.during: Callable[[], None] = lambda: None
        self.events: list[Any] = []
        self.snapshot = Snapshot(state=State.HOLD)
        self.pids: list[int] = []
        self.config = Config()
        slot: Any = SimpleNamespace(
            notice=lambda *_: None, snapshot=lambda: self.snapshot, apply=self.events.append,
            pids=lambda: self.pids, engine=ENGINE, reported=dict, forecast=lambda: MEMORY,
            config=lambda: self.config,
        )  # fmt: skip
        self.port = free_port()
        pairs = Pairs(b"", b"", b"", b"")
        self.head = Head(
            "head1", f"127.0.0.1:{self.port}", Quorum(nodes, least or nodes, 60.0), pairs, slot
        )
        self.head._facts = HEAD
        self.head._links.measure = self._measure  # type: ignore[method-assign]
        self.head._links.measure_between = self._measure_between  # type: ignore[method-assign]
        for name in found:
            self.join(name)

    def join(self, name: str, facts: NodeFacts = WORKER, **report: Any) -> None:
        made = replace(facts, name=name)
        told = Report(name, **{"boot": f"boot of {name}", **report})
        self.head._roster.members[name] = Member(b"", told, now(), now(), made)

    async def _measure(
        self, own: str, peers: Sequence[Peer], again: Callable[[str], bool], pace: Pace
    ) -> None:
        assert own == HEAD.address
        assert self.head._links.turn.locked()
        self.paces.append(pace)
        for name, boot, _ in peers:
            self.names.append(name)
            during, self.during = self.during, lambda: None
            during()
            self.again.append(again(name))
            self.head._links._known.keep(name, boot, self.found[name], None)

    async def _measure_between(
        self, peers: Sequence[Peer], again: Callable[[str, str], bool], pace: Pace
    ) -> None:
        assert self.head._links.turn.locked()
        self.paces.append(pace)
        for one, other in combinations(sorted(peers), 2):
            names = one.name, other.name
            self.pairs.append(names)
            self.again.append(again(*names))
            found = self.between.get(names, GOOD)
            self.head._links._pairs.keep(names, (one.boot, other.boot), found, None)

    def choose(self) -> dict[str, int]:
        """What the next inspection chooses."""
        self.snapshot = replace(self.snapshot, inspection=self.snapshot.inspection + 1)
        return self.choose_again()

    def choose_again(self) -> dict[str, int]:
        """What the same one does, after a change while it planned."""

        async def work() -> None:
            async with self.head._links.turn:
                await self.head._choose(self.port + 1)

        asyncio.run(work())
        return self.head._team.ranks

    def measure(self) -> list[str]:
        asyncio.run(self.head.measure())
        return self.names


def test_only_workers_that_are_to_serve_are_tried() -> None:
    tried = Tried(n2=GOOD, n3=GOOD)
    assert tried.choose() == {"n2": 1}
    assert tried.names == ["n2"]
    assert tried.choose() == {"n2": 1}
    assert tried.names == ["n2", "n2"], "each start tries"


def test_another_worker_serves_where_a_link_does_not_work() -> None:
    tried = Tried(n2=CLOSED, n3=GOOD)
    assert tried.choose() == {"n3": 1}
    assert tried.names == ["n2", "n3"]


def test_all_trials_of_one_inspection_share_their_time_and_what_they_found() -> None:
    """It chooses anew where a worker changes meanwhile, up to three times."""
    tried = Tried(n2=CLOSED, n3=GOOD)
    tried.choose()
    first = tried.paces[-1]
    assert tried.choose_again() == {"n3": 1}
    assert tried.names == ["n2", "n3", "n3"], "what failed just now is not tried again"
    assert all(pace is first for pace in tried.paces)
    tried.choose()
    assert tried.paces[-1] is not first
    assert tried.names[3:] == ["n2", "n3"]


def test_a_start_shows_how_far_its_trials_are() -> None:
    tried = Tried(n2=GOOD)
    tried.during = lambda: tried.head._paced().tell("connects to n2")
    tried.choose()
    told = [one for one in tried.events if isinstance(one, Progressed)]
    assert [one.detail for one in told] == ["connects to n2", ""], "and that they are over"
    assert all(one.heartbeat for one in told), "the inspection gets no more time"


def test_without_another_one_the_start_waits_and_says_why() -> None:
    tried = Tried(n2=CLOSED)
    with pytest.raises(Obstacle, match="node n2: head1 cannot connect to n2 at") as refused:
        tried.choose()
    assert refused.value.hold
    tried.found["n2"] = GOOD
    assert tried.choose() == {"n2": 1}, "it is tried anew"


def test_a_worker_that_differs_is_not_tried() -> None:
    tried = Tried(n2=GOOD)
    tried.join("n2", replace(WORKER, torch="2.12.0"))
    with pytest.raises(Obstacle, match="torch differs"):
        tried.choose()
    assert tried.names == []


def test_a_worker_that_is_started_anew_meanwhile_is_tried_anew() -> None:
    tried = Tried(n2=GOOD)
    tried.during = lambda: tried.join("n2", boot="another")
    tried.choose()
    assert tried.names == ["n2", "n2"]
    assert tried.head._team.boots == {"n2": "another"}


def test_nobody_waits_for_the_report_of_a_worker_that_is_gone() -> None:
    async def work() -> None:
        tried = Tried(n2=GOOD)
        trial = Trial("t", "10.0.0.1", 7071, True)
        with tried.head._links.asking.ask("n2", "boot of n2", trial) as asked:
            outcome = asyncio.ensure_future(asked.outcome())
            tried.head._look()
            await asyncio.sleep(0)
            assert not outcome.done()
            tried.head._roster.members["n2"].gone = True
            tried.head._look()
            with pytest.raises(Unreported, match="the daemon of n2 ended, or was cut off"):
                await outcome

    asyncio.run(work())


def test_workers_are_tried_with_each_other_once_the_head_reaches_them() -> None:
    tried = Tried(3, n2=CLOSED, n3=GOOD, n4=GOOD)
    assert tried.choose() == {"n3": 1, "n4": 2}
    assert tried.names == ["n2", "n3", "n4"]
    assert tried.pairs == [("n3", "n4")]
    tried.choose()
    assert tried.pairs == [("n3", "n4")] * 2, "each start tries"


def test_of_two_workers_that_do_not_reach_each_other_one_serves() -> None:
    tried = Tried(3, n2=GOOD, n3=GOOD, n4=GOOD)
    tried.between["n2", "n3"] = CLOSED
    assert tried.choose() == {"n2": 1, "n4": 2}
    assert tried.pairs[-1] == ("n2", "n4")
    tried = Tried(3, n2=GOOD, n3=GOOD)
    tried.between["n2", "n3"] = CLOSED
    with pytest.raises(Obstacle, match="node n3: n2 cannot connect to n3 at") as refused:
        tried.choose()
    assert refused.value.finding.failure == "node-unfit"
    tried.between.clear()
    assert tried.choose() == {"n2": 1, "n3": 2}, "it is tried anew"


def test_one_whose_link_fails_counts_as_missing_over_several_attempts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = now()
    monkeypatch.setattr(choosing, "now", lambda: at)
    tried = Tried(3, 2, n2=GOOD, n3=GOOD)
    tried.between["n2", "n3"] = CLOSED
    for _ in range(2):
        with pytest.raises(Obstacle):
            tried.choose()
        at += 40.0
    assert tried.choose() == {"n2": 1}
    tried.between.clear()
    assert tried.choose() == {"n2": 1, "n3": 2}
    tried.between["n2", "n3"] = CLOSED
    with pytest.raises(Obstacle):
        tried.choose()


def test_the_worker_that_no_other_reaches_is_the_one_to_do_without() -> None:
    tried = Tried(4, n2=GOOD, n3=GOOD, n4=GOOD, n5=GOOD)
    tried.between = {("n2", other): CLOSED for other in ("n3", "n4", "n5")}
    assert tried.choose() == {"n3": 1, "n4": 2, "n5": 3}
    found = [one for one in tried.head.describe()["checks"] if one["verdict"] == "FAIL"]
    assert {one["node"] for one in found} == {"n2"}


def test_the_slowest_of_all_links_is_the_clusters() -> None:
    tried = Tried(3, n2=replace(GOOD, connect_s=1e-4), n3=replace(GOOD, connect_s=1e-4))
    tried.between["n2", "n3"] = replace(SLOW, connect_s=3e-4)
    tried.choose()
    assert tried.head._links.network(tried.head._team.boots) == Network(50e6, 3e-4)
    found = tried.head.describe()["checks"]
    (warned,) = (one for one in found if one["verdict"] == "WARN")
    assert warned["text"].startswith("n3 sends 400 Mbit/s to n2")
    tried.head._links._pairs = Memory(9)
    assert tried.head._links.network(tried.head._team.boots) is None, "of one nothing is known"


def test_the_check_tries_workers_with_each_other() -> None:
    tried = Tried(3, n2=GOOD, n3=GOOD, n4=GOOD)
    tried.between["n2", "n3"] = SLOW
    tried.measure()
    assert (tried.pairs, tried.again[-1]) == ([("n2", "n3")], False)
    tried.between["n2", "n3"] = GOOD
    tried.measure()
    assert (len(tried.pairs), tried.again[-1]) == (2, True)
    tried.measure()
    assert len(tried.pairs) == 2


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        ({}, "NCCL finds no InfiniBand or RoCE on n2"),
        ({"mlx5_1": "InfiniBand"}, ""),
    ],
)
def test_the_fabric_of_those_that_serve_counts(devices: dict[str, str], why: str) -> None:
    tried = Tried(n2=GOOD, n3=GOOD)
    tried.head._facts = replace(HEAD, rdma={"mlx5_0": "InfiniBand"})
    tried.join("n2", replace(WORKER, rdma=devices))
    tried.choose()
    assert tried.head._no_rdma == why


FABRIC = {"mlx5_0": "InfiniBand"}
WITHOUT_IB = parse({"engine": {"env": {"NCCL_IB_DISABLE": "1"}}})


def with_fabric(**nodes: dict[str, str]) -> Tried:
    """A head with a fabric and workers with these devices, whose links are slow over TCP."""
    tried = Tried(1 + len(nodes), **dict.fromkeys(nodes, SLOW))
    tried.between = dict.fromkeys(combinations(nodes, 2), SLOW)
    tried.head._facts = replace(HEAD, rdma=FABRIC)
    for name, devices in nodes.items():
        tried.join(name, replace(WORKER, rdma=devices))
    return tried


def slow(tried: Tried) -> list[str]:
    """The links that are found to be slow."""
    found = [one["text"].partition(", and ")[0] for one in tried.head.describe()["checks"]]
    return [text for text in found if " sends " in text]


def test_a_slow_link_counts_where_any_node_keeps_all_from_the_fabric() -> None:
    over_it = with_fabric(n2=FABRIC, n3=FABRIC)
    over_it.choose()
    over_it.choose()
    assert (slow(over_it), set(over_it.again)) == ([], {False})
    lacking = with_fabric(n2=FABRIC, n3={})
    lacking.choose()
    assert slow(lacking) == [f"{way} sends 400 Mbit/s to head1" for way in ("n2", "n3")] + [
        "n3 sends 400 Mbit/s to n2"
    ]
    lacking.again.clear()
    lacking.measure()
    assert (lacking.again, lacking.names[-2:]) == ([True] * 3, ["n2", "n3"])


def test_an_operator_that_keeps_nccl_from_the_fabric_is_believed() -> None:
    tried = with_fabric(n2=FABRIC)
    assert tried.head.describe()["planned"]["no_rdma"] == ""
    tried.config = WITHOUT_IB
    tried.choose()
    assert tried.head._no_rdma == "[engine] env sets NCCL_IB_DISABLE"
    assert slow(tried) == ["n2 sends 400 Mbit/s to head1"]


def test_a_spare_worker_without_the_fabric_keeps_nobody_from_it() -> None:
    tried = with_fabric(n2=FABRIC)
    tried.found["n3"] = SLOW
    tried.join("n3", WORKER)
    tried.choose()
    assert slow(tried) == []


def test_what_a_plan_would_count_with_is_in_the_document() -> None:
    tried = Tried(n2=CLOSED, n3=GOOD)
    tried.head._facts = replace(HEAD, rdma={"mlx5_0": "InfiniBand"})
    why = "NCCL finds no InfiniBand or RoCE on n2"
    assert tried.head.describe()["planned"] == {
        "nodes": ["n2"], "ram_mib": 64000, "link": None, "no_rdma": why,
    }  # fmt: skip
    tried.found = {name: replace(one, connect_s=2e-4) for name, one in tried.found.items()}
    tried.choose()
    tried.head._facts = HEAD
    assert tried.head.describe()["planned"] == {
        "nodes": ["n3"],
        "ram_mib": 64000,
        "link": {"bytes_s": 1.2e9, "round_trip_s": 2e-4},
        "no_rdma": "no node has InfiniBand or RoCE",
    }


def test_a_head_that_could_not_be_inspected_claims_no_fabric() -> None:
    tried = Tried(n2=replace(GOOD, connect_s=2e-4))
    tried.choose()
    assert tried.head.describe()["planned"]["link"] is not None
    tried.head._facts = None
    found = tried.head.describe()["planned"]
    assert (found["nodes"], found["link"]) == (["n2"], None)


H100 = Card("NVIDIA H100 80GB HBM3", 81559, (9, 0), 81559)


@pytest.mark.parametrize("cards", [4, 8])
@pytest.mark.parametrize("found", [GOOD, SLOW, CLOSED])
def test_one_answer_has_room_for_64_nodes(cards: int, found: Link) -> None:
    """And for their checks, of which 1953 pairs of workers may have one each."""
    names = [f"gpu-node-{number:03}" for number in range(63)]
    tried = Tried(64, **dict.fromkeys(names, GOOD))
    tried.head._facts = replace(HEAD, cards=(H100,) * cards)
    ranks = tuple((f"TP{number + 500}", 4194000 + number, number) for number in range(cards))
    sizes = {"weights_gib": 4.325, "kv_gib": 70.381}
    for name in names:
        tried.join(name, replace(WORKER, cards=(H100,) * cards), ranks=ranks, sizes=sizes)
    tried.between = dict.fromkeys(combinations(names, 2), found)
    tried.measure()
    told = tried.head.describe()
    frame = encode_reply(Reply("0" * 64, result=told))
    assert len(frame) <= MAX_BYTES
    assert [len(node["ranks"]) for node in told["nodes"][1:]] == [cards] * 63
    assert [node["gpus"] for node in told["nodes"][1:]] == [list(range(cards))] * 63
    assert [node["reported"] for node in told["nodes"][1:]] == [sizes] * 63
    checks = told["checks"]
    assert len(checks) >= 63
    if found == GOOD:
        assert {one["verdict"] for one in checks} == {"PASS"}
    else:
        assert checks[-1]["text"].startswith("not shown, as this answer has no room: ")
        assert checks[-1]["verdict"] == ("WARN" if found == SLOW else "FAIL")


@pytest.mark.parametrize(("gone", "listed"), [(0, 0), (40, 40), (150, None)])
def test_nodes_that_are_lost_leave_an_answer_its_room(gone: int, listed: int | None) -> None:
    names = [f"gpu-node-{number:03}.example.net" for number in range(63)]
    tried = Tried(64, **dict.fromkeys(names, GOOD))
    ranks = tuple((f"PP63_TP{number}", 4194000 + number, number) for number in range(8))
    report = {"ranks": ranks, "sizes": {"stage_63_weights_gib": 4.325, "stage_63_kv_gib": 70.381}}
    eight = replace(WORKER, cards=(H100,) * 8)
    tried.head._facts = replace(HEAD, cards=(H100,) * 8)
    lost = [f"gpu-node-{number:03}.example.org" for number in range(gone)]
    for name in (*names, *lost):
        tried.join(name, eight, **report)
    for at, name in enumerate(lost):
        tried.head._roster.members[name].heard -= 1000.0 + at
    told = tried.head.describe()
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
        text = f"no room: {gone - len(left)} nodes that are lost or refused"
        assert [text in one for one in unlisted] == [True]


def test_the_worst_findings_come_first_and_what_is_left_out_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(document, "ROOM_BYTES", 200)
    found = [
        (verdict, CheckResult("cluster", verdict, verdict * 5, "fix"))
        for verdict in ("PASS", "WARN", "FAIL", "WARN")
    ]
    shown = document.with_checks({"nodes": []}, found)["checks"]
    assert [one["verdict"] for one in shown] == ["FAIL", "WARN", "WARN"]
    assert shown[-1]["text"] == "not shown, as this answer has no room: 2 more"
    shown = document.with_checks({"nodes": [], "x": "x" * 200}, found[:1])["checks"]
    assert [(one["verdict"], one["text"], one["remedy"]) for one in shown] == [
        ("PASS", "not shown, as this answer has no room: 1 more, which PASS", "")
    ]


def test_a_head_that_cannot_listen_fails_the_check() -> None:
    tried = Tried()
    with pytest.raises(ProblemError):
        asyncio.run(tried.head._listen())
    (found,) = tried.head.describe()["checks"]
    assert (found["node"], found["verdict"]) == ("head1", "FAIL")
    assert found["text"].startswith(f"cannot hear any worker: 127.0.0.1:{tried.port} is this")
    assert found["remedy"] == "set [cluster] head to an address that workers reach"


def test_the_check_tries_what_is_not_known_to_work() -> None:
    tried = Tried(n2=GOOD, n3=CLOSED)
    assert tried.measure() == ["n2", "n3"]
    assert tried.measure() == ["n2", "n3", "n3"]


def test_a_slow_link_is_measured_again_by_the_check_and_by_a_start() -> None:
    tried = Tried(n2=SLOW)
    assert tried.measure() == ["n2"]
    assert tried.measure() == ["n2", "n2"]
    tried.found["n2"] = GOOD
    tried.choose()
    tried.choose()
    assert tried.again == [False, True, True, False]


@pytest.mark.parametrize("state", [State.STOPPED, State.FAILED, State.BACKOFF])
def test_the_check_tries_in_all_states_without_an_engine(state: State) -> None:
    tried = Tried(n2=GOOD)
    tried.snapshot = Snapshot(state=state)
    assert tried.measure() == ["n2"]


def serves(tried: Tried) -> None:
    tried.snapshot = Snapshot(state=State.SERVING)


def starts(tried: Tried) -> None:
    tried.snapshot = Snapshot(state=State.STARTING)


def is_inspected(tried: Tried) -> None:
    tried.snapshot = Snapshot(state=State.HOLD, inspecting=True)


def has_processes(tried: Tried) -> None:
    tried.pids.append(1)


def runs_there(tried: Tried) -> None:
    tried.join("n2", running="start")


@pytest.mark.parametrize(
    "busy", [serves, starts, is_inspected, has_processes, runs_there], ids=lambda one: one.__name__
)
def test_nothing_is_tried_where_an_engine_is_or_may_come(busy: Callable[[Tried], None]) -> None:
    tried = Tried(n2=GOOD)
    busy(tried)
    assert tried.measure() == []
