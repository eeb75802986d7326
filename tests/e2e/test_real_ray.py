"""A real Ray on two nodes under two daemons, with a stand-in for vLLM, which needs cards."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from caovand.adapters.system import processes
from tests.cluster_pair import Pair, pair
from tests.daemon_process import ROOT, Daemon
from tests.patience import until
from tests.scenarios import test_supervision
from tests.scenarios.test_cluster import pids, restarts_in_step, serve
from tests.scenarios.test_cluster_ray import RAY, actor, ranks
from tests.scenarios.test_supervision import configuration

pytestmark = pytest.mark.long
PYTHON = ROOT / ".caovan/ray/bin/python"
model = test_supervision.model


@pytest.fixture
def two(model: Path, tmp_path: Path) -> Iterator[Pair]:
    if not PYTHON.exists():
        pytest.skip("needs Ray: make ray")
    engine, cards = tmp_path / "python", tmp_path / "cards.json"
    program = ROOT / "tests/standin/over_real_ray.py"
    engine.write_text(f'#!/bin/sh\nexec {PYTHON} {program} "$@"\n')
    engine.chmod(0o755)
    cards.write_text(json.dumps({"cards": 1}))
    config = configuration(model, watch="recheck_s = 1")
    config = config.replace(str(test_supervision.ENGINE), str(engine))
    environ = {**RAY, "STANDIN_GPUS": str(cards)}
    with pair(config, config, tmp_path, environ=environ, heads_environ=environ,
              heads_more='executor = "ray"\n') as both:  # fmt: skip
        yield both


def named(one: Daemon, words: str) -> int:
    """The pid of the process of an engine with these words in its command line."""
    (pid,) = [p.pid for p in one.tree() if words in processes.command_of(p.pid)]
    return pid


def test_ray_on_two_nodes_is_healed_whatever_dies_and_leaves_nothing(two: Pair) -> None:
    serve(two)
    until(lambda: ranks(two) == [["PP0"], ["PP1"]], "the rank of each node")
    assert "this is an actor, on card 0" in two.worker.ctl("logs", "--lines", "200").stdout
    for dead in (
        lambda: actor(two.worker),
        lambda: named(two.worker, "/raylet/raylet "),
        lambda: two.head.status()["engine_pid"],
    ):
        before, left = pids(two), {p.pid for one in (two.head, two.worker) for p in one.tree()}
        os.kill(dead(), signal.SIGKILL)
        restarts_in_step(two, before)
        now = {p.pid for one in (two.head, two.worker) for p in one.tree()}
        assert not left & now
        until(lambda: ranks(two) == [["PP0"], ["PP1"]], "the rank of each node")
    assert two.head.ctl("stop").returncode == 0
    for one in (two.head, two.worker):
        two.until_nothing_runs(one)
        assert not list(one.folder.rglob("session_*"))
