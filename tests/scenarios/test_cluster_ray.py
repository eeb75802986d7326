"""Two daemons over stand-in engines and a stand-in Ray: started, healed and ended as one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from caovand.adapters.system import processes
from tests.cluster_pair import Pair, pair
from tests.daemon_process import Daemon
from tests.patience import until
from tests.scenarios import test_supervision
from tests.scenarios.test_cluster import CUDA, pids, restarts_in_step, serve
from tests.scenarios.test_supervision import configuration

model = test_supervision.model
RAY = {**CUDA, "STANDIN_RAY": "2.60.0"}


@contextlib.contextmanager
def over_ray(model: Path, folder: Path, workers_ray: str = "2.60.0") -> Iterator[Pair]:
    """A head and a worker with a card each, and Ray in their engines' environments."""
    cards = folder / "cards.json"
    cards.write_text(json.dumps({"cards": 1}))
    environ = {**RAY, "STANDIN_GPUS": str(cards)}
    config = [configuration(model, watch="recheck_s = 1") for _ in range(2)]
    with pair(
        *config, folder, environ={**environ, "STANDIN_RAY": workers_ray},
        heads_environ=environ, heads_more='executor = "ray"\n',
    ) as two:  # fmt: skip
        yield two


def actor(one: Daemon) -> int:
    """The pid of the actor on this daemon's node."""
    titles = {p.pid: processes.command_of(p.pid) for p in one.tree()}
    (pid,) = [pid for pid, title in titles.items() if title.startswith("ray::RayWorkerProc")]
    return pid


def ranks(two: Pair) -> list[list[str]]:
    """What the head says of the ranks on each node, but for its engine core."""
    nodes = two.cluster(two.head)["nodes"]
    found = [[one["rank"] for one in node["ranks"]] for node in nodes]
    return [[rank for rank in held if rank.startswith("PP")] for held in found]


def test_ray_is_started_on_both_nodes_and_vllm_over_it(model: Path, tmp_path: Path) -> None:
    with over_ray(model, tmp_path) as two:
        serve(two)
        (argv,), (rank,) = two.head.commands(), two.worker.commands()
        where = " --address 10.77.0.1:7071 --own 10.77.0.2 --cards 1"
        assert " ".join(rank) == " ".join(argv[:2]) + where
        assert argv[argv.index("--") + 1] == argv[0]
        assert argv[argv.index("--distributed-executor-backend") + 1] == "ray"
        until(lambda: ranks(two) == [["PP0"], ["PP1"]], "the rank of each node")
        logs = two.head.ctl("logs", "--lines", "200").stdout
        joined = "Ray: 2 of 2 nodes joined: 10.77.0.1 with 1 of 1 cards, 10.77.0.2 with 1 of 1"
        assert joined in logs
        assert "this is an actor" in two.worker.ctl("logs", "--lines", "200").stdout
        # Ray's own daemons let in nobody without the cluster's token, which is in no log.
        environ = Path(f"/proc/{actor(two.worker)}/environ").read_bytes().split(b"\0")
        (token,) = [line for line in environ if line.startswith(b"RAY_AUTH_TOKEN=")]
        assert len(token) == len("RAY_AUTH_TOKEN=") + 64
        assert token.decode().partition("=")[2] not in logs + json.dumps(two.head.status())
        assert two.head.ctl("stop").returncode == 0
        two.until_nothing_runs(two.head)
        two.until_nothing_runs(two.worker)


def test_an_actor_that_dies_is_healed_on_both_nodes(model: Path, tmp_path: Path) -> None:
    with over_ray(model, tmp_path) as two:
        serve(two)
        before, dead = pids(two), actor(two.worker)
        os.kill(dead, signal.SIGKILL)
        restarts_in_step(two, before)
        assert any("RayWorkerProc rank=[1] died" in text for text in two.head.events())
        assert actor(two.worker) != dead
        until(lambda: ranks(two) == [["PP0"], ["PP1"]], "the rank of each node")


def test_a_launcher_that_is_killed_leaves_nothing_of_ray(model: Path, tmp_path: Path) -> None:
    with over_ray(model, tmp_path) as two:
        serve(two)
        for one in (two.worker, two.head):
            before, left = pids(two), {p.pid for p in one.tree()}
            os.kill(one.status()["engine_pid"], signal.SIGKILL)
            restarts_in_step(two, before)
            assert not left & {p.pid for p in one.tree()}


def test_another_release_of_ray_is_named_with_what_to_install(model: Path, tmp_path: Path) -> None:
    with over_ray(model, tmp_path, workers_ray="2.59.1") as two:
        until(lambda: "Ray differs" in two.head.status()["reason"], "a difference")
        assert "2.60.0 on n1, 2.59.1 on n2" in two.head.status()["reason"]
        checks = two.head.ctl("cluster", "check")
        assert checks.returncode == 1
        assert "-m pip install ray==2.60.0" in " ".join(checks.stdout.split())
        assert two.head.commands() == []
