"""caovand over a real vLLM with models for tasks other than text generation."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests import tiny_tasks
from tests.daemon_process import Daemon, daemon
from tests.patience import until
from tests.ports import free_port
from tests.real_engine import MODELS, configuration, found_out

pytestmark = [pytest.mark.engine, pytest.mark.long]
REQUEST_S = 120
INPUT = {"input": "hello world"}
PAIR = {"query": "hello", "documents": ["world", "a supervisor"]}
# model, its task, and what clients ask for: path, body, and the keys that lead to the answer
ROWS = (
    ("embedder", "embed", "/v1/embeddings", INPUT, ("data", 0, "embedding")),
    ("encoder", "embed", "/v1/embeddings", INPUT, ("data", 0, "embedding")),
    ("reranker", "score", "/rerank", PAIR, ("results", 1, "relevance_score")),
    ("classifier", "classify", "/classify", INPUT, ("data", 0, "probs")),
    ("reward", "token_classify", "/pooling", INPUT, ("data", 0, "data")),
)


def asked(one: Daemon, path: str, body: dict[str, Any]) -> Any:
    address = one.status()["served"]["url"].removesuffix("/v1")
    request = urllib.request.Request(
        f"{address}{path}",
        json.dumps({"model": "tiny", **body}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=REQUEST_S) as answer:
        return json.loads(answer.read())


@pytest.mark.parametrize(
    ("kind", "task", "path", "body", "keys"),
    [
        pytest.param(*row, marks=[] if row[0] == "embedder" else pytest.mark.exhaustive, id=row[0])
        for row in ROWS
    ],
)
def test_a_model_of_each_task_is_proven_by_its_own_endpoint(
    engine: Path, tmp_path: Path, kind: str, task: str, path: str, body: Any, keys: Any
) -> None:
    with serving(engine, tmp_path, kind) as one:
        status = one.until_state("SERVING")
        assert (status["failures"], status["task"], status["mtp"]) == (0, task, 0)
        found = asked(one, path, body)
        for key in keys:
            found = found[key]
        assert found


@pytest.mark.exhaustive
def test_a_frozen_embedder_is_found_by_an_embedding_and_replaced(
    engine: Path, tmp_path: Path
) -> None:
    with serving(
        engine, tmp_path, "embedder", "hang_s = 6\nconfirm_s = 6\nidle_probe_s = 3"
    ) as one:
        before = one.until_state("SERVING")
        for process in one.tree():
            if "EngineCore" in process.name or "Worker" in process.name:
                os.kill(process.pid, signal.SIGSTOP)
        until(lambda: one.status()["restarts"] > before["restarts"], "another start")
        after = one.until_state("SERVING")
        assert after["last_failure"]["failure"] == "hang"
        assert asked(one, "/v1/embeddings", INPUT)["data"]


def serving(
    engine: Path, folder: Path, kind: str, watch: str = ""
) -> AbstractContextManager[Daemon]:
    """A daemon that serves a tiny model of this kind."""
    model = tiny_tasks.KINDS[kind](MODELS / "dense", folder / kind)
    config = configuration(engine, "dense", free_port(), watch)
    config = config.replace(str(MODELS / "dense"), str(model)).replace("max_model_len = 2048\n", "")
    return daemon(config, found_out=found_out(engine))
