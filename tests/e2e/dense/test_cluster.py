"""A real vLLM over two nodes under two daemons: tensor parallel, and a pipeline."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_pair import Pair, pair
from tests.daemon_process import Daemon
from tests.e2e.dense.conftest import EXACT
from tests.patience import PATIENCE_S, until
from tests.ports import free_port
from tests.real_engine import configuration, found_out

pytestmark = [pytest.mark.engine, pytest.mark.long]
QUESTION = {"prompt": "hello there, tell me", "max_tokens": 24, "ignore_eos": True}
LONG = {**QUESTION, "max_tokens": 900}


def ranks(two: Pair) -> dict[str, dict[str, int]]:
    """The ranks of each node, as the head shows them."""
    nodes = two.cluster(two.head)["nodes"]
    return {node["name"]: {one["rank"]: one["pid"] for one in node["ranks"]} for node in nodes}


def serving(two: Pair, rank: str) -> dict[str, dict[str, int]]:
    """Wait until both nodes serve; their ranks."""
    two.head.until_state("SERVING")
    two.worker.until_state("SERVING")
    return until(lambda: (found := ranks(two)) and rank in found.get("n2", {}) and found, "ranks")


def healed(two: Pair, before: dict[str, dict[str, int]], rank: str) -> dict[str, dict[str, int]]:
    """Wait until both nodes serve with other ranks."""

    def look() -> bool:
        states = {two.head.status()["state"], two.worker.status()["state"]}
        found = ranks(two)
        return states == {"SERVING"} and found.get("n2", {}).get(rank) not in (
            None,
            before["n2"][rank],
        )

    until(look, "new ranks on both nodes")
    return ranks(two)


def ask(port: int) -> dict[str, Any]:
    """The answer of an engine on this node."""
    body = json.dumps({"model": "tiny", "temperature": 0, **QUESTION}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return dict(json.load(answer))


def text_of(answer: dict[str, Any] | None) -> str:
    assert answer is not None
    return str(answer["choices"][0]["text"])


@pytest.fixture(scope="module")
def alone(exact: tuple[Daemon, int]) -> str:
    """What one node answers, whose forecast of the cache is exact."""
    one, port = exact
    tokens = one.status()["forecast"]["kv_tokens"]
    assert tokens["forecast"] == tokens["reported"]
    return text_of(ask(port))


def test_a_model_split_over_two_nodes_is_healed_as_one(
    engine: Path, tmp_path: Path, alone: str
) -> None:
    port = free_port()
    config = configuration(engine, "dense", port, EXACT)
    with pair(config, config, tmp_path, found_out=found_out(engine)) as two:
        first = serving(two, "TP1")
        assert set(first["n1"]) == {"EngineCore", "TP0"}
        assert set(first["n2"]) == {"TP1"}
        assert text_of(two.complete(port, **QUESTION)) == alone

        os.kill(first["n2"]["TP1"], signal.SIGKILL)
        second = healed(two, first, "TP1")
        assert any("node n2:" in text for text in two.head.events())
        assert text_of(two.complete(port, **QUESTION)) == alone

        with ThreadPoolExecutor(1) as asker:
            answer = asker.submit(two.complete, port, **LONG)
            until(lambda: two.head.status()["figures"]["running"], "a request under way")
            two.nodes.cut_for(10)  # which ends nothing
            assert text_of(answer.result()) == text_of(two.complete(port, **LONG))
        assert ranks(two) == second

        # A cut for good, and the head's daemon does not live to see its end.
        two.nodes.cut()
        assert "1 of 2 nodes missing: n2" in two.head.until_state("HOLD")["reason"]
        two.worker.until_state("HOLD")
        two.until_nothing_runs(two.head)
        two.until_nothing_runs(two.worker)
        two.head.kill()
        two.nodes.join()
        two.head.start()
        healed(two, second, "TP1")
        assert text_of(two.complete(port, **QUESTION)) == alone


def test_stages_on_two_nodes_answer_as_one_node_and_leave_nothing(
    engine: Path, tmp_path: Path, alone: str
) -> None:
    with staged(engine, tmp_path) as (two, port):
        first = serving(two, "PP1")
        assert set(first["n1"]) == {"EngineCore", "PP0"}
        assert set(first["n2"]) == {"PP1"}
        assert text_of(two.complete(port, **QUESTION)) == alone

        assert two.head.ctl("stop").returncode == 0
        two.worker.until_state("HOLD")
        two.until_nothing_runs(two.head)
        two.until_nothing_runs(two.worker)


@pytest.mark.exhaustive
def test_a_frozen_stage_and_a_killed_daemon_of_a_worker_are_healed_as_one(
    engine: Path, tmp_path: Path, alone: str
) -> None:
    with staged(engine, tmp_path) as (two, port):
        first = serving(two, "PP1")
        os.kill(first["n2"]["PP1"], signal.SIGSTOP)
        assert two.complete(port, **QUESTION) is None
        second = healed(two, first, "PP1")
        assert text_of(two.complete(port, **QUESTION)) == alone

        two.worker.kill()
        two.worker.start()
        healed(two, second, "PP1")
        assert text_of(two.complete(port, **QUESTION)) == alone


@contextmanager
def staged(engine: Path, folder: Path) -> Iterator[tuple[Pair, int]]:
    """Two nodes with a stage of the model each, and the engine's port."""
    port = free_port()
    config = configuration(engine, "dense", port, f"hang_s = 15\n{EXACT}")
    head = config.replace("extra_args = [", 'extra_args = ["--pipeline-parallel-size", "2", ')
    with pair(head, config, folder, found_out=found_out(engine)) as two:
        yield two, port
