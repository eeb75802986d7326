"""Two daemons over stand-in engines that serve one model from two nodes, and what goes wrong."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.network import cluster_key
from caovand.cli.common.client import DaemonClient
from tests.cluster_pair import HEAD, Pair, pair, section
from tests.daemon_process import ROOT, Daemon, daemon
from tests.patience import PATIENCE_S, until
from tests.ports import free_port
from tests.scenarios import test_supervision
from tests.scenarios.test_supervision import CONTEXT_TOO_LONG, configuration, make_model

model = test_supervision.model
CUDA = {"STANDIN_BUILD": "cuda", "PYTHONPATH": f"{ROOT / 'tests/standin/drivers'}:{ROOT}"}
PARTITION = b"VLLM_PP_LAYER_PARTITION="


def both(model: Path, orders: dict[str, Any] | None = None) -> tuple[str, str]:
    """The configurations of head and worker, with these orders for the worker's stand-in."""
    recheck = "recheck_s = 1"
    return configuration(model, watch=recheck), configuration(model, orders, watch=recheck)


def serve(two: Pair) -> None:
    two.head.until_state("SERVING")
    two.worker.until_state("SERVING")


@contextlib.contextmanager
def serving(model: Path, folder: Path) -> Iterator[Pair]:
    """A head and its worker that serve."""
    with pair(*both(model), folder) as two:
        serve(two)
        yield two


def restarts_in_step(two: Pair, before: tuple[int, int]) -> None:
    """Wait until both serve with other engines than those before."""

    def look() -> bool:
        now = [one.status() for one in (two.head, two.worker)]
        pids = tuple(status["engine_pid"] for status in now)
        serving = all(status["state"] == "SERVING" for status in now)
        return serving and not set(pids) & set(before)

    until(look, "new engines on both nodes")


def pids(two: Pair) -> tuple[int, int]:
    return (two.head.status()["engine_pid"], two.worker.status()["engine_pid"])


def test_a_head_and_its_worker_start_and_end_in_step(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path) as two:
        (argv,), (rank,) = two.head.commands(), two.worker.commands()
        for words in (argv, rank):
            assert words[words.index("--nnodes") + 1] == "2"
            assert words[words.index("--tensor-parallel-size") + 1] == "2"
            assert words[words.index("--master-addr") + 1] == "10.77.0.1"
        assert argv[argv.index("--node-rank") + 1] == "0"
        assert rank[rank.index("--node-rank") + 1] == "1"
        assert "--headless" in rank
        assert "head n1 of 2 nodes: n2 joined\n" in two.head.ctl("status").stdout
        assert "worker n2 of head n1 at 10.77.0.1:7070\n" in two.worker.ctl("status").stdout
        nodes = two.cluster(two.head)["nodes"]
        assert [(one["name"], one["state"]) for one in nodes] == [("n1", "here"), ("n2", "joined")]
        for words in (("mode", "fast"), ("reset",), ("retry", "--full"), ("bench",)):
            refused = two.worker.ctl(*words)
            assert refused.returncode == 1
            assert f"run `caovanctl {' '.join(words)}` on the head" in refused.stderr
        # A mode of the head's holds for both.
        before = pids(two)
        assert two.head.ctl("mode", "fast").returncode == 0
        restarts_in_step(two, before)
        assert two.head.status()["mtp"] == two.worker.status()["mtp"] == 4
        causes = [one.status()["figures"]["restarts"] for one in (two.head, two.worker)]
        assert causes == [{"plan": 1}, {"head": 1}]
        # Whoever changes its configuration and reloads, all restart; without a change nobody does.
        before = pids(two)
        for one in (two.worker, two.head):
            assert one.ctl("reload").returncode == 0
        assert pids(two) == before
        heads, workers = (one.config_path.read_text() for one in (two.head, two.worker))
        two.head.config_path.write_text(heads + "\n[policy]\nmtp = 1\n")
        assert two.head.ctl("reload").returncode == 0
        restarts_in_step(two, before)
        assert two.head.status()["mtp"] == two.worker.status()["mtp"] == 1
        before = pids(two)
        two.worker.config_path.write_text(workers.replace(str(model), "/nonexistent/model"))
        refused = two.worker.ctl("reload")
        assert (refused.returncode, "nothing changed" in refused.stderr) == (1, True)
        two.worker.config_path.write_text(workers.replace("STANDIN =", 'ROLLED = "1", STANDIN ='))
        assert two.worker.ctl("reload", "--no-wait").returncode == 0
        restarts_in_step(two, before)
        why = "node n2: its rank was stopped because its configuration changed there"
        assert any(why in text for text in two.head.events())
        # Its launcher has another environment, until it executes the engine.
        environ = Path(f"/proc/{pids(two)[1]}/environ")
        until(lambda: b"ROLLED=1" in environ.read_bytes().split(b"\0"), "the rank's variables")
        assert two.head.ctl("stop").returncode == 0
        two.worker.until_state("HOLD")
        two.until_nothing_runs(two.worker)
        assert "waiting for the head" in two.worker.status()["reason"]
        # That is no failure, and no error in the log.
        whys = ("because its configuration changed", "/nonexistent/model")
        for one, why in zip((two.head, two.worker), whys, strict=True):
            with DaemonClient(one.folder / "run") as client:
                told = [one for one in client.ask("events")["events"] if one["kind"] == "failure"]
            assert all(why in one["text"] for one in told), told


def printed(one: Daemon) -> int:
    """How many of this daemon's engines have printed what they print last."""
    with DaemonClient(one.folder / "run") as client:
        lines = client.ask("logs", lines=1000)["lines"]
    return sum("Starting vLLM server" in line for line in lines)


def evidence_of(two: Pair, number: int) -> dict[str, Any]:
    """What the head's incident has of the worker, once it has that."""
    file = f"state/slots/main/incidents/{number:04}-*/node-1.json"
    found = until(lambda: list(two.head.folder.glob(file)), f"evidence in incident {number}")
    return dict(json.loads(found[0].read_text()))


def test_layers_are_dealt_by_the_cards_of_both_nodes(tmp_path: Path) -> None:
    """A 3090 in the head and two 2080 Ti in the worker, which runs its stage on one of them."""
    long = make_model(tmp_path / "long", hybrid=True)
    described = json.loads((long / "config.json").read_text())
    described |= {"num_hidden_layers": 16, "layer_types": described["layer_types"] * 4}
    (long / "config.json").write_text(json.dumps(described))
    dummy = 'extra_args = ["--load-format", "dummy"]'
    config = [configuration(long, watch="recheck_s = 1", engine=dummy) for _ in range(2)]
    cards = [{"cards": 1, "name": "NVIDIA GeForce RTX 3090", "total_mib": 24576}, {"cards": 2}]
    environ = []
    for name, told in zip(("head", "worker"), cards, strict=True):
        (tmp_path / f"{name}.json").write_text(json.dumps(told))
        environ.append({**CUDA, "STANDIN_GPUS": str(tmp_path / f"{name}.json")})
    with pair(*config, tmp_path, environ=environ[1], heads_environ=environ[0]) as two:
        serve(two)
        dealt = set()
        for one in (two.head, two.worker):
            (argv,) = one.commands()
            assert argv[argv.index("--tensor-parallel-size") + 1] == "1"
            assert argv[argv.index("--pipeline-parallel-size") + 1] == "2"
            # The process begins as the program that confines it.
            environ_of = Path(f"/proc/{one.status()['engine_pid']}/environ")
            until(lambda: b"STANDIN" in environ_of.read_bytes(), "the engine itself")  # noqa: B023
            started = environ_of.read_bytes()
            dealt |= {part for part in started.split(b"\0") if part.startswith(PARTITION)}
            assert b"\0CUDA_VISIBLE_DEVICES=0\0" in started
        (only,) = dealt
        first, last = map(int, only.partition(b"=")[2].split(b","))
        assert first + last == 16
        assert first > last
        shown = two.head.ctl("plan", "--json")
        ranks = json.loads(shown.stdout)["memory"]["ranks"]
        assert [(one["node"], one["layers"]) for one in ranks] == [
            ("head", [0, first - 1]),
            ("n2", [first, 15]),
        ]


def test_a_rank_that_dies_is_healed_on_both_nodes(model: Path, tmp_path: Path) -> None:
    # A token of this machine's, and one that comes with the head's plan.
    orders = {"print": ["login with hf_abcdefghijklmnopqrst", "sesame-4711 \x1b[31mred"]}
    head, worker = both(model, orders)
    head = head.replace("env = { ", 'env = { OUR_TOKEN = "sesame-4711", ')
    with pair(head, worker, tmp_path) as two:
        serve(two)
        for number, one in enumerate((two.worker, two.head), 1):
            # The worker serves as soon as the head does: its rank may have printed nothing yet.
            until(lambda n=number: printed(two.worker) >= n, "what the worker's rank prints")
            before = pids(two)
            os.kill(one.status()["engine_pid"], signal.SIGKILL)
            restarts_in_step(two, before)
        failures = [text for text in two.head.events() if "node n2:" in text]
        assert failures, two.head.events()
        # The head's incidents have what the worker has: of its own failure, and of the head's.
        own, others = evidence_of(two, 1), evidence_of(two, 2)
        assert (own["name"], own["finding"]["failure"]) == ("n2", "engine-died")
        assert others["finding"] is None
        for found in (own, others):
            assert "login with hf_[secret]" in found["log"], found
            assert "sesame" not in json.dumps(found)
            assert any("Starting vLLM server" in line for line in found["log"]), found["log"]
        shown = two.head.ctl("incidents", "show", "1").stdout
        assert "\nnode n2, rank 1, " in shown
        assert "Starting vLLM server" in shown.partition("\nnode n2")[2]
        assert "\nnode n2, rank 1, " in two.head.ctl("incidents", "show", "2").stdout


def test_a_daemon_that_is_killed_comes_back_into_the_cluster(model: Path, tmp_path: Path) -> None:
    orders = {"at": {"kv": CONTEXT_TOO_LONG}, "die_at": "kv", "unless": "1024"}
    head = configuration(model, orders, watch="recheck_s = 1")
    with pair(head, both(model)[1], tmp_path) as two:
        serve(two)
        for one in (two.worker, two.head):
            before, tried = pids(two), len(two.head.commands())
            one.kill()
            one.start()
            restarts_in_step(two, before)
            assert two.head.status()["rungs"] == ["context 1024"]
            if one is two.worker:  # the head remembers the step, over a link measured anew
                assert all("1024" in words for words in two.head.commands()[tried:])


@pytest.mark.long
def test_where_fewer_may_serve_the_head_goes_on_alone_until_its_worker_is_back(
    model: Path, tmp_path: Path
) -> None:
    with pair(*both(model), tmp_path, heads_more="min_nodes = 1\nwait_s = 2\n") as two:
        serve(two)
        first, rank = pids(two)
        two.worker.kill()
        alone = "head n1 of 2 nodes: n2 lost; serves on 1 until all are here\n"
        until(lambda: alone in two.head.ctl("status").stdout, "a head that goes on alone")
        second = two.head.until_state("SERVING")["engine_pid"]
        assert second != first
        assert "--nnodes" not in two.head.commands()[-1]
        two.worker.start()
        restarts_in_step(two, (second, rank))
        assert "--nnodes" in two.head.commands()[-1]
        assert any("node n2 is back" in text for text in two.head.events())


def test_a_second_machine_of_a_name_is_refused_and_disturbs_nobody(
    model: Path, tmp_path: Path
) -> None:
    with serving(model, tmp_path) as two:
        before = pids(two)
        text = f"{both(model)[1]}\n{section('worker', 'n2', tmp_path / 'cluster.key')}"
        with daemon(text, wrapper=two.nodes.wrapper(1)) as other:
            fact = "two machines are named n2"
            until(lambda: fact in other.status()["reason"], "a worker that knows it is refused")
            checks = two.head.ctl("cluster", "check")
            assert checks.returncode == 1
            assert fact in checks.stdout
            assert fact in two.head.ctl("cluster", "nodes").stdout
            assert "nodes: n2 refused; n2 joined\n" in two.head.ctl("status").stdout
            assert [text for text in two.head.events() if fact in text] == [
                f"{fact}; set [cluster] name on one of them, and restart caovan there"
            ]
            assert pids(two) == before
            assert other.commands() == []


@pytest.mark.long
def test_a_link_that_is_cut_for_good_ends_all_and_says_who_is_missing(
    model: Path, tmp_path: Path
) -> None:
    listen = f"127.0.0.1:{free_port()}"
    head = configuration(model, watch="recheck_s = 1", page=f'listen = "{listen}"')

    def on_the_page() -> bool:
        """Whether the page names n2 as lost: its own event for the nodes."""
        url = f"http://{listen}/api/live"
        lines = two.nodes.run(0, "curl", "-sN", "-m", "3", url).stdout.splitlines()
        nodes = [after for line, after in pairwise(lines) if line == "event: cluster"]
        return any('"name":"n2"' in one and '"state":"lost"' in one for one in nodes)

    with pair(head, both(model)[1], tmp_path) as two:
        serve(two)
        before = pids(two)
        two.nodes.cut()
        two.worker.until_state("HOLD")
        status = two.head.until_state("HOLD")
        assert "1 of 2 nodes missing: n2 is silent" in status["reason"]
        assert "head n1 of 2 nodes: n2 lost\n" in two.head.ctl("status").stdout
        assert "  cluster   head n1 of 2 nodes: n2 lost\n" in two.head.ctl("top").stdout
        assert "it does not answer" in two.worker.status()["reason"]
        until(on_the_page, "a page with a lost node")
        assert "the node is silent" in evidence_of(two, 1)["missing"]
        shown = two.head.ctl("incidents", "show", "1").stdout
        assert "node n2, rank 1: no evidence: the node is silent" in shown
        two.until_nothing_runs(two.worker)
        two.until_nothing_runs(two.head)
        two.nodes.join()
        restarts_in_step(two, before)


def test_nodes_that_differ_hold_the_start_and_say_what_to_do(model: Path, tmp_path: Path) -> None:
    other = make_model(tmp_path / "model")
    weights = other / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    head, _ = both(model)
    with pair(head, configuration(other, watch="recheck_s = 1"), tmp_path) as two:
        status = two.head.until_state("HOLD")
        until(lambda: "node n2" in two.head.status()["reason"], "a difference")
        assert "model.safetensors" in two.head.status()["reason"], status
        checks = two.head.ctl("cluster", "check")
        assert checks.returncode == 1
        assert "model.safetensors" in checks.stdout
        # Mended, it starts by itself.
        weights.write_bytes((model / "model.safetensors").read_bytes())
        serve(two)


def test_an_interface_that_is_not_there_is_named(model: Path, tmp_path: Path) -> None:
    with pair(*both(model), tmp_path, 'interface = "eth7"') as two:
        status = two.worker.until_state("HOLD")
        assert "eth7" in status["reason"]
        until(lambda: "eth7" in two.head.status()["reason"], "a head that knows why")
        assert "n2 has joined and cannot serve" in two.head.status()["reason"]
        # Waiting for a node is no incident.
        assert two.head.ctl("incidents").stdout == two.worker.ctl("incidents").stdout


def test_another_release_of_the_engine_is_named_with_what_to_install(
    model: Path, tmp_path: Path
) -> None:
    with pair(*both(model), tmp_path, environ={"STANDIN_VERSION": "0.33.0+cpu"}) as two:
        until(lambda: "0.33.0" in two.head.status()["reason"], "a difference")
        reason = two.head.status()["reason"]
        assert "node n2" in reason
        assert "caovanctl engine install" in reason
        assert two.head.commands() == []


@pytest.mark.long
def test_a_hang_on_the_head_has_the_stacks_of_the_worker(model: Path, tmp_path: Path) -> None:
    watch = "recheck_s = 1\nstall_s = 10\nfailures = 1"
    head = configuration(model, {"hang": True}, watch=watch)
    with pair(head, both(model)[1], tmp_path) as two:
        found = evidence_of(two, 1)
        assert found["finding"] is None
        assert any(line.startswith("=== ") for line in found["stacks"]), found
        shown = two.head.ctl("incidents", "show", "1").stdout
        assert "start-stall" in shown
        assert "lines in node-1.json" in shown


@pytest.mark.long
def test_a_link_that_is_cut_for_ten_seconds_ends_nothing(model: Path, tmp_path: Path) -> None:
    # Idle for much longer than that, no rank counts as hung.
    watch = "recheck_s = 1\nhang_s = 5\nconfirm_s = 1"
    config = configuration(model, watch=watch)
    with pair(config, configuration(model, watch=watch), tmp_path) as two:
        serve(two)
        before = pids(two)
        two.nodes.cut_for(10)
        two.nodes.stay_joined_for(10)
        assert pids(two) == before
        # The worker hears the head again: it does as told.
        assert two.head.ctl("mode", "fast").returncode == 0
        restarts_in_step(two, before)
        for one in (two.head, two.worker):
            assert not one.status()["failures"]
            assert not any("silent" in text for text in one.events())


FLOOD = """
import asyncio, os, sys
from pathlib import Path
from caovand.adapters.network import cluster_key
from caovand.adapters.network.cluster_link import WorkerLink

async def flood():
    pairs = cluster_key.derive_pairs(cluster_key.read(Path(sys.argv[1])))
    link = WorkerLink(sys.argv[2], pairs, lambda *_: None, Path(sys.argv[3]))
    frames = [os.urandom(200), b"{}", b"[" * 5000, b'{"v":1}', b"", b"x" * 100_000,
              b"evidence {}"]
    for number in range(100_000):
        await link._socket.send(frames[number % len(frames)])
    print("sent", flush=True)
    link.close()

asyncio.run(flood())
"""


@pytest.mark.long
def test_a_hundred_thousand_malformed_frames_and_a_stale_key_leave_the_head_unmoved(
    model: Path, tmp_path: Path
) -> None:
    stale = tmp_path / "stale.key"
    cluster_key.make(stale, "")
    # From the same address, and under the same name.
    twin = f"{both(model)[1]}\n{section('worker', 'n2', stale)}"
    with (
        serving(model, tmp_path) as two,
        daemon(twin, wrapper=two.nodes.wrapper(1)) as other,
    ):
        before = pids(two)
        key = str(tmp_path / "cluster.key")
        done = subprocess.run(
            [*two.nodes.wrapper(1), sys.executable, "-c", FLOOD, key, HEAD, str(tmp_path)],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert done.stdout == "sent\n", done.stderr
        until(lambda: "cluster.key differs" in other.status()["reason"], "a worker that knows why")
        assert other.status()["state"] == "HOLD"
        assert other.commands() == []
        assert pids(two) == before
        assert [one.status()["state"] for one in (two.head, two.worker)] == ["SERVING"] * 2
        nodes = two.cluster(two.head)["nodes"]
        assert [(one["name"], one["state"]) for one in nodes] == [("n1", "here"), ("n2", "joined")]
        assert two.head.events().count("node n2 joined") == 1
        told = [text for text in two.head.events() if "cannot read what a worker reports" in text]
        assert 0 < len(told) < 50  # each kind once, however often it comes


CROWD = """
import socket
links = []
for number in range(5000):
    links.append(socket.create_connection(("10.77.0.1", 7070), 60, ("10.77.0.3", 0)))
    links[number // 2].close()
print(len(links))
"""


@pytest.mark.long
def test_five_thousand_connections_of_a_stranger_leave_both_joined_and_few_descriptors_open(
    model: Path, tmp_path: Path
) -> None:
    with serving(model, tmp_path) as two:
        assert two.head.process is not None
        own = Path(f"/proc/{two.head.process.pid}/fd")
        before, at_rest = pids(two), len(os.listdir(own))
        two.nodes.run(1, "ip", "addr", "add", "10.77.0.3/24", "dev", "eth0")
        with subprocess.Popen(
            [*two.nodes.wrapper(1), sys.executable, "-c", CROWD], stdout=subprocess.PIPE, text=True
        ) as crowd:
            seen = []

            def ended() -> bool:
                seen.append(len(os.listdir(own)))
                return crowd.poll() is not None

            until(ended, "a crowd that has ended")
            assert crowd.stdout is not None
            assert crowd.stdout.read() == "5000\n"
        # Eight connections of three each; threads and files of the daemon's own come and go.
        assert max(seen) <= at_rest + 24 + 20
        assert pids(two) == before
        assert [one.status()["state"] for one in (two.head, two.worker)] == ["SERVING"] * 2
        assert two.head.events().count("node n2 joined") == 1


def test_an_operator_on_a_worker_restarts_or_stops_all(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path) as two:
        before = pids(two)
        assert two.worker.ctl("restart", "--no-wait").returncode == 0
        restarts_in_step(two, before)
        assert two.worker.ctl("stop").returncode == 0
        until(lambda: "n2 was stopped" in two.head.status()["reason"], "a head that waits")
        two.until_nothing_runs(two.head)
        before = pids(two)
        assert two.worker.ctl("start", "--no-wait").returncode == 0
        serve(two)
        # Its daemon ends: the rest does not go on without it.
        assert two.worker.stop() == 0
        two.head.until_state("HOLD")
        two.until_nothing_runs(two.head)
