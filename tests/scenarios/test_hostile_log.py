"""A log that clients wrote to keep its parser busy: the daemon still responds and heals."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.daemon_process import Daemon, daemon
from tests.patience import until
from tests.scenarios.test_supervision import configuration, model

__all__ = ["model"]

ACCESS = "INFO:     10.0.0.1:1 - \"GET /health?'k':'" + "\\" * 60 + ' HTTP/1.1" 200 OK'
ERROR = "(EngineCore pid=2) ERROR 11-20 08:53:14 [serving.py:1] "
SLOWEST_S = 20.0  # of a machine that does other things too; a loop that stands still never answers


def hostile(path: Path) -> Path:
    """The lines of the issue, and a key among them."""
    lines = [ACCESS, json.dumps({"levelname": "ERROR", "message": "中" * 1500})]
    lines += [ACCESS + '"api_key": "hunter2-4711' + "\\" * 40]
    lines += [f"{ERROR}The model {n} {'torch_compile' * 307}"[:4000] for n in range(500)]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def answered_until_it_serves(one: Daemon) -> float:
    """Ask for the status all the time until an engine serves; the slowest answer."""
    slowest = 0.0

    def look() -> bool:
        nonlocal slowest
        began = time.monotonic()
        status = one.status()
        slowest = max(slowest, time.monotonic() - began)
        return bool(status["state"] == "SERVING")

    until(look, "an engine that serves", every_s=0.01)
    return slowest


@pytest.mark.long
@pytest.mark.parametrize("do", ["exit", "dead"])
def test_a_hostile_log_delays_neither_answers_nor_the_next_engine(
    model: Path, tmp_path: Path, do: str
) -> None:
    fault = {
        "at": "completion", "do": do, "file": str(hostile(tmp_path / "log")),
        "memory": str(tmp_path / "memory"),
    }  # fmt: skip
    with daemon(configuration(model, {"fault": fault})) as one:
        slowest = answered_until_it_serves(one)
        assert len(one.spawned()) == 2
        assert slowest < SLOWEST_S
        (row,) = until(lambda: json.loads(one.ctl("incidents", "--json").stdout), "an incident")
        assert row["failure"] == "engine-died"
        (folder,) = (one.folder / "state/slots/main/incidents").iterdir()
        kept = "".join(file.read_text() for file in folder.iterdir())
        assert "hunter2" not in kept
        assert "torch_compile" in kept
