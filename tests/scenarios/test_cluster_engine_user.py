"""A head and a worker whose engines are another user's, as in the package, on two nodes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import real_engine
from tests.cluster_pair import Pair, pair
from tests.daemon_process import ROOT
from tests.e2e import test_real_ray
from tests.e2e.dense.test_cluster import serving, text_of
from tests.patience import until
from tests.ports import free_port
from tests.scenarios import test_supervision
from tests.scenarios.test_cluster import both, pids, restarts_in_step, serve
from tests.scenarios.test_cluster_ray import RAY, ranks
from tests.scenarios.test_supervision import configuration, make_model
from tests.service_users import Users, enterable, service_users

pytestmark = pytest.mark.long


@pytest.fixture
def users() -> Iterator[Users]:
    """Both users, who can reach this Python and the tree."""
    with service_users() as made, enterable(Path(sys.executable), ROOT):
        yield made


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user may enter, unlike pytest's."""
    with tempfile.TemporaryDirectory(prefix="caovan-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def are_of(users: Users, two: Pair) -> None:
    """See that every process of both engines is the engines' user's."""
    found = {p.pid for one in (two.head, two.worker) for p in one.tree()}
    assert found
    assert {pid for pid in found if not users.runs(pid)} == set()


def end(users: Users, two: Pair) -> None:
    """Stop on the head, and see that nothing of either engine is left."""
    assert two.head.ctl("stop").returncode == 0
    for one in (two.head, two.worker):
        two.until_nothing_runs(one)
        assert one.stop() == 0
    assert users.left() == []


def test_ranks_of_that_user_start_heal_and_end_in_step(place: Path, users: Users) -> None:
    with pair(*both(make_model(place / "hybrid")), place, users=users) as two:
        serve(two)
        are_of(users, two)
        for one in (two.worker, two.head):
            before = pids(two)
            os.kill(one.status()["engine_pid"], signal.SIGKILL)
            restarts_in_step(two, before)
        are_of(users, two)
        end(users, two)


def test_ray_of_that_user_joins_and_leaves_nothing(place: Path, users: Users) -> None:
    if not test_real_ray.PYTHON.exists():
        pytest.skip("needs Ray: make ray")
    engine, cards = place / "python", place / "cards.json"
    program = ROOT / "tests/standin/over_real_ray.py"
    engine.write_text(f'#!/bin/sh\nexec {test_real_ray.PYTHON} {program} "$@"\n')
    engine.chmod(0o755)
    cards.write_text(json.dumps({"cards": 1}))
    config = configuration(make_model(place / "hybrid"), watch="recheck_s = 1")
    config = config.replace(str(test_supervision.ENGINE), str(engine))
    environ = {**RAY, "STANDIN_GPUS": str(cards)}
    with (
        enterable(test_real_ray.PYTHON),
        pair(config, config, place, environ=environ, heads_environ=environ,
             heads_more='executor = "ray"\n', users=users) as two,
    ):  # fmt: skip
        serve(two)
        until(lambda: ranks(two) == [["PP0"], ["PP1"]], "the rank of each node")
        are_of(users, two)
        before = pids(two)
        os.kill(test_real_ray.actor(two.worker), signal.SIGKILL)
        restarts_in_step(two, before)
        are_of(users, two)
        end(users, two)


@pytest.mark.engine
@pytest.mark.exhaustive
def test_a_real_vllm_of_that_user_over_two_nodes(place: Path, users: Users) -> None:
    weights = place / "dense"
    shutil.copytree(real_engine.MODELS / "dense", weights)
    subprocess.run(["chmod", "-R", "a+rX", weights], check=True)
    port = free_port()
    config = real_engine.configuration(real_engine.ENGINE, "dense", port)
    config = config.replace(str(real_engine.MODELS / "dense"), str(weights))
    with enterable(real_engine.ENGINE), pair(config, config, place, users=users) as two:
        first = serving(two, "TP1")
        are_of(users, two)
        ask = {"prompt": "hello there, tell me", "max_tokens": 24, "ignore_eos": True}
        answer = two.complete(port, **ask)
        before = pids(two)
        os.kill(first["n2"]["TP1"], signal.SIGKILL)
        restarts_in_step(two, before)
        assert text_of(two.complete(port, **ask)) == text_of(answer)
        end(users, two)
