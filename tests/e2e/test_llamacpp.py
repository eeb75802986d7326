"""caovand over a real llama-server, built by `make llamacpp`: installed, chosen, proven, healed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.system import processes
from caovand.engines.llamacpp.tiny_model import tiny_model
from tests import tiny_gguf
from tests.daemon_process import ROOT, Daemon, daemon
from tests.patience import until
from tests.ports import free_port

pytestmark = [pytest.mark.engine, pytest.mark.long]
ENGINES = Path(os.environ.get("CAOVAN_TEST_ENGINES", ROOT / ".engines"))
REQUEST_S = 60


@pytest.fixture(scope="module")
def engines() -> Path:
    if not (ENGINES / "current-llamacpp").exists():
        pytest.fail("no llama.cpp to test with: run `make llamacpp` first", pytrace=False)
    return ENGINES


@pytest.fixture(scope="module")
def served(engines: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose configuration names nothing but a GGUF file."""
    model = tmp_path_factory.mktemp("model") / "tiny.gguf"
    model.write_bytes(tiny_model())
    config = f"""
[model]
path = "{model}"
[server]
port = {free_port()}
[watch]
hang_s = 5
confirm_s = 5
"""
    with daemon(config, {"CAOVAN_ENGINES": str(engines)}) as one:
        one.until_state("SERVING")
        yield one


def complete(one: Daemon, timeout_s: float = REQUEST_S) -> dict[str, Any]:
    """A completion as a client would ask for it."""
    body = {"prompt": "hello", "max_tokens": 8, "temperature": 0}
    request = urllib.request.Request(
        f"{one.status()['served']['url']}/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        return dict(json.loads(answer.read()))


def restarted(one: Daemon, before: dict[str, Any]) -> dict[str, Any]:
    """The status once another engine serves than before, all of whose processes are gone."""
    until(lambda: one.status()["restarts"] > before["restarts"], "another start")
    after = one.until_state("SERVING")
    assert before["engine_pid"] not in {p.pid for p in processes.all_processes() if not p.zombie}
    assert complete(one)["usage"]["completion_tokens"] == 8
    return dict(after)


def test_the_installed_engine_is_whole(engines: Path) -> None:
    command = [sys.executable, "-m", "caovand.cli.engine"]
    for words in (("verify", "--kind", "llamacpp"), ("list",)):
        done = subprocess.run(
            [*command, *words, "--root", str(engines)], cwd=ROOT, check=False, capture_output=True,
            text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "llama.cpp 11434.0.0" in done.stdout


def test_a_gguf_file_is_served_by_llama_cpp_without_a_word_about_it(served: Daemon) -> None:
    status = served.status()
    assert (status["served"]["name"], status["failures"]) == ("tiny", 0)
    assert complete(served)["usage"]["completion_tokens"] == 8

    # once its own counters are read, work that waits and no progress can be told apart
    def counted() -> float:
        return float(served.status()["figures"]["totals"]["generation_tokens"])

    until(counted, "its counters are read")


def test_a_killed_engine_serves_again(served: Daemon) -> None:
    before = served.status()
    os.kill(before["engine_pid"], signal.SIGKILL)
    assert restarted(served, before)["last_failure"]["failure"] == "engine-died"


def test_a_frozen_engine_is_found_ended_and_replaced(served: Daemon) -> None:
    before = served.status()
    os.kill(before["engine_pid"], signal.SIGSTOP)
    with suppress(OSError):
        complete(served, 1)
    assert restarted(served, before)["last_failure"]["failure"] == "hang"


def test_another_kind_is_refused_while_the_engine_serves_on(served: Daemon) -> None:
    text, pid = served.config_path.read_text(), served.status()["engine_pid"]
    served.config_path.write_text(f'{text}\n[engine]\nkind = "vllm"\n')
    served.ctl("reload")
    until(lambda: served.status()["refusal"], "the refusal")
    assert "is for vLLM, but this daemon started with llama.cpp" in str(served.status()["refusal"])
    assert served.status()["engine_pid"] == pid
    served.config_path.write_text(text)
    assert served.ctl("reload").returncode == 0
    until(lambda: not served.status()["refusal"], "no refusal any more")
    assert complete(served)["choices"]


def test_a_killed_daemon_is_followed_by_one_that_ends_the_orphans_and_serves(
    served: Daemon,
) -> None:
    old = {p.pid for p in served.tree()}
    served.kill()
    served.start()
    served.until_state("SERVING")
    assert not old & {p.pid for p in processes.all_processes() if not p.zombie}
    assert complete(served)["choices"]


def test_an_embedder_is_proven_by_an_embedding(engines: Path, tmp_path: Path) -> None:
    model = tmp_path / "bert.gguf"
    model.write_bytes(tiny_gguf.make_encoder())
    config = f'[model]\npath = "{model}"\n[server]\nport = {free_port()}\n'
    with daemon(config, {"CAOVAN_ENGINES": str(engines)}) as one:
        status = one.until_state("SERVING")
        assert (status["failures"], status["task"]) == (0, "embed")
        request = urllib.request.Request(
            f"{status['served']['url']}/embeddings",
            json.dumps({"input": "hello"}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=REQUEST_S) as answer:
            assert len(json.loads(answer.read())["data"][0]["embedding"]) == tiny_gguf.WIDTH


def test_a_stop_leaves_nothing(served: Daemon) -> None:
    assert served.ctl("stop").returncode == 0
    assert served.until_state("STOPPED")["engine_pid"] is None
    assert served.tree() == []
