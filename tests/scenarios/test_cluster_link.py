"""Two daemons whose link is closed, loses large packets or is behind NAT: found before a start."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.network import cluster_key
from tests.cluster_pair import Pair, pair, section
from tests.daemon_process import Daemon, daemon
from tests.patience import until
from tests.scenarios import test_supervision
from tests.scenarios.test_supervision import configuration
from tests.two_nodes import TwoNodes, namespaces, two_nodes

model = test_supervision.model

pytestmark = pytest.mark.long

WATCH = "recheck_s = 1"
INPUT = "table inet t {{ chain i {{\ntype filter hook input priority 0\n{rule}\n}}\n}}"
MASQUERADE = "table ip t { chain p {\ntype nat hook postrouting priority 100\nmasquerade\n}\n}"
NEW = "tcp flags & (syn | ack) == syn drop"
MASTER_PORT = "tcp dport 7071 reject with icmp type admin-prohibited"
LARGE = "tcp sport != 7070 meta length > 1000 drop"


@pytest.fixture(autouse=True)
def nft() -> None:
    if not shutil.which("nft"):
        pytest.skip("needs nft (Debian's nftables, which `make firewall` installs)")


def load(nodes: TwoNodes, node: int, rules: str) -> None:
    """Let a node have these rules and no others."""
    words = [*nodes.wrapper(node), "nft", "-f", "-"]
    subprocess.run(words, input=f"flush ruleset\n{rules}\n", text=True, check=True)


def reason(one: Daemon, text: str) -> str:
    """Wait for a HOLD whose reason has this text."""

    def look() -> str:
        status = one.status()
        return status["reason"] if status["state"] == "HOLD" and text in status["reason"] else ""

    return until(look, f"a HOLD for {text}: {one.log()}")


def checked(two: Pair) -> list[dict[str, Any]]:
    """What `caovanctl cluster check` finds between the nodes."""
    return list(json.loads(two.head.ctl("cluster", "check", "--json").stdout)["checks"])


def link(two: Pair) -> dict[str, Any] | None:
    nodes = json.loads(two.head.ctl("cluster", "nodes", "--json").stdout)["nodes"]
    return nodes[1]["link"]  # type: ignore[no-any-return]


def serve(two: Pair) -> None:
    two.head.until_state("SERVING")
    two.worker.until_state("SERVING")


def test_a_firewall_on_either_node_is_found_before_a_start(model: Path, tmp_path: Path) -> None:
    with pair(
        configuration(model, watch=WATCH), configuration(model, watch=WATCH), tmp_path
    ) as two:
        serve(two)
        before = link(two)
        assert before is not None
        assert before["works"] is True
        assert checked(two)[0]["verdict"] in ("PASS", "WARN")
        assert link(two) == before, "nothing is checked while an engine serves"
        started = len(two.head.commands())

        # The worker lets nobody in: each start tries anew, and none begins.
        assert two.head.ctl("stop").returncode == 0
        two.worker.until_state("HOLD")
        load(two.nodes, 1, INPUT.format(rule=NEW))
        assert two.head.ctl("start", "--no-wait").returncode == 0
        text = reason(two.head, "n1 cannot connect to n2 at 10.77.0.2")
        assert "where ranks listen on free ports: no answer within 4 s" in text
        assert "allow all TCP from 10.77.0.1" in text
        (found,) = [one for one in checked(two) if one["verdict"] == "FAIL"]
        assert found["remedy"].startswith("on n2: allow all TCP")
        assert len(two.head.commands()) == started

        # So does the head, at the port of the ranks.
        load(two.nodes, 0, INPUT.format(rule=MASTER_PORT))
        text = reason(two.head, "n2 cannot connect to n1 at port 7071 of 10.77.0.1")
        assert "where ranks meet: No route to host" in text
        assert "on n1: allow all TCP from 10.77.0.2" in text

        # Opened, it starts by itself.
        load(two.nodes, 1, "")
        load(two.nodes, 0, "")
        serve(two)

        # A worker that is new is checked on request, though nothing is to start.
        assert two.head.ctl("stop").returncode == 0
        assert two.worker.stop() == 0
        load(two.nodes, 1, INPUT.format(rule=LARGE))
        two.worker.start()
        until(lambda: two.cluster(two.head)["nodes"][1]["state"] == "joined", "the worker")
        until(lambda: two.cluster(two.head)["nodes"][1]["facts"], "its facts")
        assert link(two) is None
        (found,) = [one for one in checked(two) if one["verdict"] == "FAIL"]
        assert found["text"].startswith("n2 receives no data from n1 over an open connection: ")
        load(two.nodes, 1, "")
        assert [one for one in checked(two) if one["verdict"] == "FAIL"] == []
        after = link(two)
        assert after is not None
        assert after["works"] is True


def test_a_head_whose_interface_leads_elsewhere_is_found(model: Path, tmp_path: Path) -> None:
    key = tmp_path / "cluster.key"
    cluster_key.make(key, "")
    config = configuration(model, watch=WATCH)
    with two_nodes() as nodes:
        for words in (
            ("link", "add", "docker0", "type", "bridge"),
            ("addr", "add", "172.17.0.1/16", "dev", "docker0"),
            ("link", "set", "docker0", "up"),
        ):
            nodes.run(0, "ip", *words).check_returncode()
        wrong = section("head", "n1", key, 'interface = "docker0"')
        with (
            daemon(f"{config}\n{wrong}", wrapper=nodes.wrapper(0)) as head,
            daemon(f"{config}\n{section('worker', 'n2', key)}", wrapper=nodes.wrapper(1)),
        ):
            text = reason(head, "n2 cannot connect to n1 at 172.17.0.1 of docker0")
            assert "Network is unreachable; over 10.77.0.1 they can connect" in text
            assert "on n1: remove [cluster] interface, or set the interface of 10.77.0.1" in text
            assert head.commands() == []


FROM_N1 = "ip saddr 10.77.0.1 tcp flags & (syn | ack) == syn reject with tcp reset"


def test_the_third_of_three_nodes_is_found_by_its_closed_port(model: Path, tmp_path: Path) -> None:
    key = tmp_path / "cluster.key"
    cluster_key.make(key, "")
    in_three = shutil.copytree(model, tmp_path / "model")
    shape = json.loads((in_three / "config.json").read_text())
    heads = {name: 3 * count // 2 for name, count in shape.items() if name.endswith("_heads")}
    (in_three / "config.json").write_text(json.dumps({**shape, **heads, "intermediate_size": 192}))
    config = configuration(in_three, watch=WATCH)
    three = f"{config}\n{section('head', 'n1', key, 'nodes = 3')}"
    with two_nodes(3) as nodes:
        load(nodes, 2, INPUT.format(rule=FROM_N1))
        with (
            daemon(three, wrapper=nodes.wrapper(0)) as head,
            daemon(f"{config}\n{section('worker', 'n2', key)}", wrapper=nodes.wrapper(1)) as n2,
            daemon(f"{config}\n{section('worker', 'n3', key)}", wrapper=nodes.wrapper(2)) as n3,
        ):
            text = reason(head, "n1 cannot connect to n3 at 10.77.0.3")
            assert "where ranks listen on free ports: Connection refused" in text
            assert "on n3: allow all TCP from 10.77.0.1" in text
            assert head.commands() == []
            load(nodes, 2, "")
            for one in (head, n2, n3):
                one.until_state("SERVING")
            planned = json.loads(head.ctl("cluster", "nodes", "--json").stdout)["planned"]
            assert planned["nodes"] == ["n2", "n3"]
            assert planned["link"]["bytes_s"] > 0


@pytest.fixture
def behind_nat() -> Iterator[tuple[TwoNodes, tuple[str, ...]]]:
    """Two nodes, and words that run a command in a network inside the second one."""
    inner = f"caovan-{os.getpid()}-in"

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    with two_nodes() as nodes, namespaces(inner):
        outer = nodes.names[1]
        ip(
            "-n",
            outer,
            "link",
            "add",
            "veth0",
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            inner,
        )
        for name, device, address in (
            (outer, "veth0", "172.30.0.1"),
            (inner, "eth0", "172.30.0.2"),
        ):
            ip("-n", name, "address", "add", f"{address}/24", "dev", device)
            ip("-n", name, "link", "set", device, "up")
        ip("-n", inner, "link", "set", "lo", "up")
        ip("-n", inner, "route", "add", "default", "via", "172.30.0.1")
        done = nodes.run(1, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        assert done.returncode == 0, done.stderr
        load(nodes, 1, MASQUERADE)
        yield nodes, ("ip", "netns", "exec", inner)


def test_a_worker_in_a_network_of_its_own_is_found(
    model: Path, tmp_path: Path, behind_nat: tuple[TwoNodes, tuple[str, ...]]
) -> None:
    nodes, inside = behind_nat
    key = tmp_path / "cluster.key"
    cluster_key.make(key, "")
    config = configuration(model, watch=WATCH)
    with (
        daemon(f"{config}\n{section('head', 'n1', key)}", wrapper=nodes.wrapper(0)) as head,
        daemon(f"{config}\n{section('worker', 'n2', key)}", wrapper=inside),
    ):
        text = reason(head, "n2 is behind NAT")
        assert "n1 cannot connect to n2 at 172.30.0.2: Network is unreachable" in text
        assert "Its own connections come from 10.77.0.2" in text
        assert "on n2: run its container with the host's network" in text
        assert head.commands() == []
