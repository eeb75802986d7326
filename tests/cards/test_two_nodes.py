"""Two cards, one a node: each split over each link, with tokens/s and the forecast of each rank.

Over Ray too, where the engine has it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests import two_nodes
from tests.cards.conftest import ENGINE, configuration, serves, shown
from tests.cluster_pair import Pair, pair
from tests.patience import until
from tests.ports import free_port

NAMESPACES = two_nodes.TwoNodes.wrapper
QUESTION = {"prompt": "hello there, tell me", "max_tokens": 24, "ignore_eos": True}
SPLITS = {"tensor parallel": "--tensor-parallel-size", "stages": "--pipeline-parallel-size"}
# NCCL passes its handles by abstract sockets otherwise, which belong to one network namespace.
NVLINK = {"NCCL_CUMEM_ENABLE": "0", "NCCL_CUMEM_HOST_ENABLE": "0"}
NO_SHARED_MEMORY = {"VLLM_ALLREDUCE_USE_SYMM_MEM": "0"}


def apart(nodes: two_nodes.TwoNodes, node: int) -> tuple[str, ...]:
    """A host name and a /dev/shm of its own too: NCCL takes these for two hosts."""
    alone = f'hostname n{node + 1}; mount -t tmpfs tmpfs /dev/shm; exec "$@"'
    return (*NAMESPACES(nodes, node), "unshare", "-u", "sh", "-c", alone, "sh")


@pytest.fixture(params=["sockets", "NVLink"])
def link(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the cards reach each other."""
    if request.param == "sockets":
        monkeypatch.setattr(two_nodes.TwoNodes, "wrapper", apart)
    return str(request.param)


def figures(two: Pair, what: str) -> None:
    """Print what was forecast and found on each node, and the speed."""
    for name, one in (("head", two.head), ("worker", two.worker)):
        print(f"{what}, {name}: {json.dumps(one.status()['forecast'])}", flush=True)
    shown(two.head, "cluster", "nodes")
    shown(two.head, "cluster", "check")
    shown(two.head, "plan")
    shown(two.head, "bench", "--prompts", "512,4096", "--at-once", "1,8", "--rounds", "2",
          "--tokens", "64")  # fmt: skip


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("executor", ["mp", "ray"])
def test_one_model_over_two_nodes(
    executor: str, split: str, link: str, cards: int, tmp_path: Path
) -> None:
    if cards < 2:
        pytest.skip("needs two cards")
    if executor == "ray" and subprocess.run([ENGINE, "-c", "import ray"], check=False).returncode:
        pytest.skip("needs Ray in the engine's environment")
    port, env = free_port(), dict(NVLINK) if link == "NVLink" else {}
    args = [SPLITS[split], "2"]
    if executor == "ray":  # it sees one host, whose ranks would share memory
        args, env = [*args, "--disable-custom-all-reduce"], {**env, **NO_SHARED_MEMORY}
    head = configuration("dense", port, [0], args, env)
    worker = configuration("dense", port, [1], [], env)
    with pair(head, worker, tmp_path, heads_more=f'executor = "{executor}"\n') as two:
        two.head.caovanctl = [*NAMESPACES(two.nodes, 0), *two.head.caovanctl]
        began = serves(two.head)["restarts"]
        assert two.complete(port, **QUESTION)
        figures(two, f"{executor}, {split}, {link}")
        (rank,) = next(n["ranks"] for n in two.cluster(two.head)["nodes"] if n["name"] == "n2")
        os.kill(rank["pid"], signal.SIGKILL)
        until(lambda: two.head.status()["restarts"] > began, "a restart")
        serves(two.head)
        assert two.complete(port, **QUESTION)
        assert two.head.ctl("stop").returncode == 0
        two.until_nothing_runs(two.head)
        two.until_nothing_runs(two.worker)
