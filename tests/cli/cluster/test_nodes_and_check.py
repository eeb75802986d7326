"""caovanctl cluster nodes and check: the daemon's reply, for people and for programs."""

from __future__ import annotations

from typing import Any

import pytest

from caovand.cli.common.errors import Exit
from tests.cli.conftest import Ctl
from tests.cli.fake_daemon import FakeDaemon, status

CARD = {"name": "Tesla T4", "memory_mib": 15360, "compute_capability": "7.5", "count": 1}
FACTS = {
    "name": "gpu1", "caovan": "0.1.0", "engine": "vllm", "version": "0.32.0", "torch": "2.9",
    "cuda": "12.8", "nccl": "2.27", "flashinfer": "", "plugin": "", "python": "3.12",
    "driver": "570.1", "cards": [{**CARD, "count": 2}], "address": "10.0.0.1", "interface": "eth0",
    "mtu": 1500, "shm_free_mib": 1024, "model_folder": "/srv/m", "model": {}, "clock": 1.0,
}  # fmt: skip


def node(name: str, state: str, **changes: Any) -> dict[str, Any]:
    address = {"gpu1": "10.0.0.1", "gpu2": "10.0.0.2"}.get(name, "10.0.0.3")
    base = {"name": name, "address": address, "state": state, "since_s": 300.0}
    more = {"facts": {**FACTS, "name": name}, "ranks": [], "gpus": [], "reported": {}}
    more["network"] = ""
    return {**base, **more, **changes}


def rank(name: str, pid: int) -> dict[str, Any]:
    return {"rank": name, "pid": pid}


def check(name: str, verdict: str, text: str, remedy: str = "") -> dict[str, str]:
    return {"node": name, "verdict": verdict, "text": text, "remedy": remedy}


def cluster(**changes: Any) -> dict[str, Any]:
    """The answer of a head with one worker."""
    return {
        "role": "head", "name": "gpu1", "head": "10.0.0.1:7070", "missing": 0,
        "forecast": {}, "nodes": [
            node("gpu1", "here", ranks=[rank("TP0", 4710), rank("TP1", 4711)],
                 gpus=[3, None]),
            node("gpu2", "joined", ranks=[rank("TP2", 815)]),
        ],
        "checks": [
            check("gpu2", "PASS", "vLLM 0.32.0 as on the head"),
            check("gpu1", "WARN", "MTU 1500", "set 9000"),
            check("gpu2", "WARN", "clock 3 s off", "run chrony"),
        ],
        **changes,
    }  # fmt: skip


ALONE = cluster(role="off", name="", head="", nodes=[], checks=[])


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that no row is too long for."""
    monkeypatch.setenv("COLUMNS", "200")


def rows(text: str) -> list[list[str]]:
    """The cells of a table's rows."""
    lines = [line.replace("┃", "│") for line in text.splitlines() if line[0] in "│┃"]
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]


def test_the_nodes_are_a_table(daemon: FakeDaemon, ctl: Ctl) -> None:
    daemon.answers["cluster"] = cluster()
    said = ctl("cluster", "nodes")
    assert said.code == 0
    assert rows(said.out) == [
        ["node", "state", "address", "engine", "cards", "ranks"],
        ["gpu1", "here", "10.0.0.1", "vllm 0.32.0", "2 × Tesla T4 (15 GiB)",
         "TP0 (pid 4710, GPU 3), TP1 (pid 4711)"],
        ["gpu2", "joined for 5 min", "10.0.0.2", "vllm 0.32.0", "2 × Tesla T4 (15 GiB)",
         "TP2 (pid 815)"],
    ]  # fmt: skip
    assert [request.args for request in daemon.asked] == [{}]


def test_what_a_node_says_of_its_memory_stands_below_beside_the_forecast(
    daemon: FakeDaemon, ctl: Ctl
) -> None:
    expected = {"kv_tokens": 9, "stage_1_weights_gib": 4.325, "stage_1_kv_gib": 70.24}
    found = {"stage_1_weights_gib": 4.32, "stage_1_kv_gib": 70.67}
    nodes = [node("gpu2", "joined", reported=found)]
    daemon.answers["cluster"] = cluster(nodes=nodes, forecast=expected)
    assert ctl("cluster", "nodes").out.splitlines()[-1] == (
        "gpu2: stage 1's weights GiB 4.32 (forecast 4.325); stage 1's KV GiB 70.67 (forecast 70.24)"
    )


HEAD = {"role": "head", "name": "gpu1", "nodes": 4, "missing": 0, "serving": 0, "joined": [],
        "lost": [], "refused": []}  # fmt: skip
WORKER = {
    "role": "worker", "name": "gpu2", "head": "10.0.0.1:7070", "head_name": "gpu1", "missing": 0,
    "lost": [],
}  # fmt: skip


@pytest.mark.parametrize("verb", ["status", "top"])
@pytest.mark.parametrize(
    ("summary", "words"),
    [
        (
            {**HEAD, "joined": ["gpu2", "gpu3", "gpu4"], "serving": 4},
            "head gpu1 of 4 nodes: gpu2, gpu3, gpu4 joined",
        ),
        (
            {**HEAD, "joined": ["gpu2"], "lost": ["gpu3"], "missing": 2},
            "head gpu1 of 4 nodes: 1 missing; gpu3 lost; gpu2 joined",
        ),
        ({**HEAD, "missing": 3}, "head gpu1 of 4 nodes: 3 missing"),
        (
            {**HEAD, "joined": ["gpu2"], "lost": ["gpu3", "gpu4"], "missing": 2, "serving": 2},
            "head gpu1 of 4 nodes: gpu3, gpu4 lost; gpu2 joined; serves on 2 until all are here",
        ),
        (
            {**HEAD, "missing": 2, "joined": ["gpu2"], "refused": ["gpu2"]},
            "head gpu1 of 4 nodes: 2 missing; gpu2 refused; gpu2 joined",
        ),
        (WORKER, "worker gpu2 of head gpu1 at 10.0.0.1:7070"),
        (
            {**WORKER, "head_name": "", "lost": ["10.0.0.1:7070"]},
            "worker gpu2 of the head at 10.0.0.1:7070, which does not answer",
        ),
    ],
)
def test_status_and_top_name_the_nodes_by_their_state(
    daemon: FakeDaemon, ctl: Ctl, verb: str, summary: dict[str, Any], words: str
) -> None:
    daemon.answers["status"] = status(cluster=summary)
    assert f"  cluster   {words}\n" in ctl(verb).out


def test_what_nccl_uses_between_nodes_is_shown(daemon: FakeDaemon, ctl: Ctl) -> None:
    nodes = [node("gpu1", "here", network="0 -> 1 Socket/0"), node("gpu2", "joined")]
    daemon.answers["cluster"] = cluster(nodes=nodes)
    assert ctl("cluster", "nodes").out.splitlines()[-1] == "gpu1: NCCL sends 0 -> 1 Socket/0"


def test_what_is_not_known_yet_is_blank_and_kinds_of_cards_are_counted(
    daemon: FakeDaemon, ctl: Ctl
) -> None:
    cards = [CARD, {**CARD, "name": "L4", "memory_mib": 23034}, CARD]
    daemon.answers["cluster"] = cluster(
        nodes=[
            node("gpu1", "here", facts={}),
            node("gpu2", "joined", facts={**FACTS, "cards": cards}),
            node("cpu", "joined", facts={**FACTS, "cards": []}),
        ]
    )
    found = rows(ctl("cluster", "nodes").out)[1:]
    assert [row[3:5] for row in found] == [
        ["", ""],
        ["vllm 0.32.0", "1 × L4 (22 GiB), 2 × Tesla T4 (15 GiB)"],
        ["vllm 0.32.0", "none"],
    ]


@pytest.mark.parametrize(
    ("states", "missing", "expected"),
    [
        (["here", "joined"], 0, []),
        (["here", "lost"], 1, ["gpu2 is lost: its daemon or the link to it is down"]),
        (["here"], 1, ["1 node has not joined"]),
        (
            ["here", "lost"],
            3,
            ["gpu2 is lost: its daemon or the link to it is down", "2 nodes have not joined"],
        ),
        (["here", "lost"], 0, ["gpu2 is lost: its daemon or the link to it is down"]),
    ],
)
def test_who_is_missing_is_named_and_fails_the_check(
    daemon: FakeDaemon, ctl: Ctl, states: list[str], missing: int, expected: list[str]
) -> None:
    names = ("gpu1", "gpu2")
    nodes = [node(name, state) for name, state in zip(names, states, strict=False)]
    daemon.answers["cluster"] = cluster(nodes=nodes, missing=missing)
    said = ctl("cluster", "nodes")
    assert said.code == 0
    assert [line for line in said.out.splitlines() if line[0] not in "┏┃┡│└"] == expected
    checked = ctl("cluster", "check", "--json")
    assert checked.code == (Exit.FAILED if expected else Exit.DONE)
    failed = [one for one in checked.json["checks"] if one["verdict"] == "FAIL"]
    assert [one["text"] for one in failed] == expected
    for one in failed:
        assert one["group"] == "cluster"
        assert "`sudo caovanctl cluster join 10.0.0.1:7070`" in one["remedy"]


def test_a_name_that_two_machines_have_is_named_with_what_to_do(
    daemon: FakeDaemon, ctl: Ctl
) -> None:
    daemon.answers["cluster"] = cluster(
        nodes=[node("gpu1", "here"), node("gpu2", "joined"), node("gpu2", "refused")]
    )
    said = ctl("cluster", "nodes")
    assert [row[1] for row in rows(said.out)[1:]] == [
        "here",
        "joined for 5 min",
        "refused for 5 min",
    ]
    assert said.out.splitlines()[-1] == (
        "two machines are named gpu2; set [cluster] name on one of them, and restart caovan there"
    )


def test_checks_are_printed_by_node_as_the_doctor_prints_them(daemon: FakeDaemon, ctl: Ctl) -> None:
    daemon.answers["cluster"] = cluster()
    said = ctl("cluster", "check")
    assert said.code == 0
    assert [request.args for request in daemon.asked] == [{"probe": True}]
    assert said.out.splitlines() == [
        "gpu1",
        "  WARN  MTU 1500",
        "        fix: set 9000",
        "gpu2",
        "  PASS  vLLM 0.32.0 as on the head",
        "  WARN  clock 3 s off",
        "        fix: run chrony",
    ]


def test_a_check_that_fails_is_exit_status_1(daemon: FakeDaemon, ctl: Ctl) -> None:
    daemon.answers["cluster"] = cluster(checks=[check("", "FAIL", "NCCL differs", "update")])
    said = ctl("cluster", "check")
    assert said.code == Exit.FAILED
    assert said.out.splitlines() == ["cluster", "  FAIL  NCCL differs", "        fix: update"]
    assert ctl("cluster", "check", "--json").json == {
        "ok": False,
        "checks": [
            {"group": "cluster", "verdict": "FAIL", "text": "NCCL differs", "remedy": "update"}
        ],
    }


@pytest.mark.parametrize("verb", ["nodes", "check"])
def test_a_machine_that_serves_alone_is_shown_the_way(
    daemon: FakeDaemon, ctl: Ctl, verb: str
) -> None:
    daemon.answers["cluster"] = ALONE
    said = ctl("cluster", verb)
    assert said.code == Exit.FAILED
    assert "this machine serves alone: [cluster] role is off" in said.err
    assert "`sudo caovanctl cluster init`" in said.err
    assert "`sudo caovanctl cluster join HOST:7070`" in said.err
    assert "`sudo systemctl restart caovan`" in said.err
    as_json = ctl("cluster", verb, "--json")
    assert as_json.code == Exit.FAILED
    assert as_json.json["error"]["code"] == "no-cluster"


def test_where_nothing_was_compared_there_is_no_verdict(daemon: FakeDaemon, ctl: Ctl) -> None:
    daemon.answers["cluster"] = cluster(role="worker", checks=[])
    said = ctl("cluster", "check")
    assert said.code == Exit.FAILED
    assert "run `caovanctl cluster check` on the head, 10.0.0.1:7070" in said.err


def test_for_programs_the_nodes_are_the_daemons_answer(daemon: FakeDaemon, ctl: Ctl) -> None:
    daemon.answers["cluster"] = cluster()
    assert ctl("cluster", "nodes", "--json").json == cluster()


def test_a_daemon_that_knows_no_clusters_is_reported(daemon: FakeDaemon, ctl: Ctl) -> None:
    said = ctl("cluster", "nodes")
    assert (said.code, said.out) == (Exit.FAILED, "")
    assert "cannot do cluster" in said.err


def test_without_a_daemon_that_is_the_message(ctl: Ctl) -> None:
    for verb in ("nodes", "check"):
        said = ctl("cluster", verb)
        assert said.code == Exit.NOT_REACHABLE
        assert "cannot reach caovand" in said.err
