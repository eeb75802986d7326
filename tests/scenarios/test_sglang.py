"""The daemon over SGLang's stand-in: chosen by its kind, proven, healed, stopped."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon_process import ROOT, Daemon
from tests.patience import until
from tests.ports import free_port
from tests.scenarios.test_supervision import model

__all__ = ["model"]  # a fixture

STANDIN = ROOT / "tests/standin/sglang.py"
SHARE = 0.8


@pytest.fixture
def daemon(tmp_path: Path, model: Path) -> Iterator[Daemon]:
    python = tmp_path / "sglang/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {STANDIN} "$@"\n')
    python.chmod(0o755)
    cards = tmp_path / "cards.json"
    cards.write_text(json.dumps({"cards": 1}))
    config = f"""
[model]
path = "{model}"
max_model_len = 2048
[server]
port = {free_port()}
[policy]
gpu_memory_utilization = {SHARE}
[engine]
kind = "sglang"
python = "{python}"
env = {{ STANDIN_FITS = "{SHARE - 0.05}" }}
[watch]
hang_s = 5
confirm_s = 5
"""
    environ = {
        "PYTHONPATH": f"{ROOT / 'tests/standin/drivers'}{os.pathsep}{ROOT}",
        "STANDIN_GPUS": str(cards),
    }
    one = Daemon(tmp_path, config, environ)
    one.start()
    yield one
    one.stop()


@pytest.mark.long
def test_sglang_is_chosen_started_proven_killed_healed_and_stopped(daemon: Daemon) -> None:
    first = daemon.until_state("SERVING")
    assert first["served"]["name"] == "hybrid"
    assert (first["last_failure"]["failure"], first["last_failure"]["signature"]) == (
        "device-oom-capture", "sglang.graphs.oom",
    )  # fmt: skip
    assert first["rungs"] == ["share 0.75"]
    assert first["reported"]["kv_tokens"] == 65536
    argv = daemon.commands()[-1]
    assert argv[1:3] == ["-m", "sglang.launch_server"]
    assert argv[argv.index("--mem-fraction-static") + 1] == "0.75"
    assert argv[argv.index("--watchdog-timeout") + 1] == "300"
    assert argv[argv.index("--attention-backend") + 1] == "triton"  # the pretended card is Turing
    assert len(daemon.tree()) == 2  # the server, and its scheduler
    until(lambda: daemon.status()["figures"]["running"] is not None, "its counters")

    os.kill(first["engine_pid"], signal.SIGKILL)
    until(lambda: daemon.status()["restarts"] > first["restarts"], "a new engine")
    second = daemon.until_state("SERVING")
    assert second["last_failure"]["failure"] == "engine-died"
    assert len(daemon.tree()) == 2

    os.kill(second["engine_pid"], signal.SIGSTOP)
    until(lambda: daemon.status()["failed"].get("hang"), "a hang")
    until(lambda: daemon.status()["restarts"] > second["restarts"], "a new engine")
    daemon.until_state("SERVING")

    assert daemon.ctl("stop").returncode == 0
    assert daemon.until_state("STOPPED")["engine_pid"] is None
    assert daemon.tree() == []
