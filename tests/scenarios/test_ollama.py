"""The daemon over Ollama's stand-in: chosen by its kind, proven, healed, stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import tiny_gguf
from tests.daemon_process import Daemon
from tests.engines.ollama.store import add_model, add_program
from tests.patience import until
from tests.ports import free_port

CONTEXT = 256
CACHE_FITS = 2 * CONTEXT  # bytes: one request in half precision, and two are planned


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    add_program(tmp_path / "bin")
    add_model(tmp_path / "home/.ollama/models", "tiny:1b", tiny_gguf.make("llama"))
    config = f"""
[model]
path = "tiny:1b"
max_model_len = {CONTEXT}
[server]
port = {free_port()}
[engine]
kind = "ollama"
env = {{ STANDIN_FITS = "{CACHE_FITS}" }}
[watch]
hang_s = 5
confirm_s = 5
"""
    environ = {
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path / "home"),
    }
    one = Daemon(tmp_path, config, environ)
    one.start()
    yield one
    one.stop()


def variables(pid: int) -> dict[str, str]:
    """The environment of a process."""
    text = Path(f"/proc/{pid}/environ").read_bytes().decode()
    return dict(entry.partition("=")[::2] for entry in text.split("\0") if entry)


@pytest.mark.long
def test_ollama_is_chosen_started_proven_killed_healed_and_stopped(daemon: Daemon) -> None:
    first = daemon.until_state("SERVING")
    assert first["served"]["name"] == "tiny:1b"
    assert (first["last_failure"]["failure"], first["last_failure"]["signature"]) == (
        "host-oom", "ollama.ram",
    )  # fmt: skip
    assert first["rungs"] == ["parallel 1"]
    assert first["reported"]["version"] == "0.12.3"
    assert {tuple(command[1:]) for command in daemon.commands()} == {("serve",)}
    set_for_it = variables(first["engine_pid"])
    assert set_for_it["OLLAMA_HOST"] == f"127.0.0.1:{first['served']['url'].split(':')[2][:-3]}"
    assert set_for_it["OLLAMA_MODELS"] == str(daemon.folder / "home/.ollama/models")
    assert set_for_it["OLLAMA_CONTEXT_LENGTH"] == str(CONTEXT)
    assert set_for_it["OLLAMA_NUM_PARALLEL"] == "1"
    assert len(daemon.tree()) == 2  # the server, and the model's runner

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
