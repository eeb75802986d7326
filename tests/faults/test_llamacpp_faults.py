"""Faults of a real llama-server on tiny random models: seconds each."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from caovand.adapters.system import processes
from tests import tiny_gguf
from tests.daemon_process import ROOT
from tests.faults.seen import NOTHING, Row, Seen, fault, request
from tests.patience import until
from tests.ports import free_port
from tests.tiny_gguf import U32, value

pytestmark = [pytest.mark.engine, pytest.mark.long]
Begin = Callable[[str, str], Row]
LLAMA = "llama.cpp"
ENGINE = Path(os.environ.get("CAOVAN_TEST_ENGINES", ROOT / ".engines")) / "current-llamacpp"


@pytest.fixture(scope="module")
def python() -> Path:
    """The Python of the installed llama.cpp."""
    found = ENGINE / "bin/python"
    if not found.exists():
        pytest.fail("no llama.cpp to test with: run `make llamacpp` first", pytrace=False)
    return found


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny models: one that drafts by itself, a plain one, one with a very long context."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("qwen35", "llama"):
        (folder / f"{name}.gguf").write_bytes(tiny_gguf.make(name))
    long = {"llama.context_length": value(U32, 1 << 20)}
    (folder / "long.gguf").write_bytes(tiny_gguf.make("llama", values=long))
    return folder


def config_of(
    python: Path, model: Path, port: int, more: str = "", *, args: tuple[str, ...] = ()
) -> str:
    words = ", ".join(f'"{word}"' for word in args)
    return f"""
[model]
path = "{model}"
served_name = "tiny"
[server]
port = {port}
[engine]
python = "{python}"
extra_args = [{words}]
[watch]
recheck_s = 1
{more}
"""


@pytest.fixture(scope="module")
def shared(python: Path, models: Path) -> Iterator[tuple[Seen, int]]:
    """One daemon for faults of a serving engine: each row leaves it serving."""
    port = free_port()
    text = config_of(python, models / "qwen35.gguf", port, "hang_s = 5\nconfirm_s = 5")
    with fault(Row("", LLAMA), text) as seen:
        seen.daemon.until_state("SERVING")
        seen.daemon.spawned()
        yield seen, port
        assert seen.left() == NOTHING


def serves_again(seen: Seen, expected: str) -> None:
    """The row of a fault that a new start answers, with nothing of the old engine left."""
    old = {process.pid for process in seen.daemon.tree()}
    assert seen.failure() == expected
    seen.serving()
    seen.daemon.spawned()
    alive = {process.pid for process in processes.all_processes() if not process.zombie}
    seen.row.left = ", ".join(f"pid {pid}" for pid in old & alive) or NOTHING
    assert seen.row.left == NOTHING


def test_a_killed_server_is_started_again(shared: tuple[Seen, int], row: Begin) -> None:
    seen, _ = shared
    seen.row = row("kill -9 llama-server", LLAMA)
    pid = seen.daemon.until_state("SERVING")["engine_pid"]
    seen.now()
    os.kill(pid, signal.SIGKILL)
    serves_again(seen, "engine-died")


def test_a_stopped_server_with_a_request_waiting_is_a_hang(
    shared: tuple[Seen, int], row: Begin
) -> None:
    seen, port = shared
    seen.row = row("kill -STOP llama-server, a request waits", LLAMA)
    pid = seen.daemon.until_state("SERVING")["engine_pid"]
    seen.now()
    os.kill(pid, signal.SIGSTOP)
    request(port, "tiny")
    serves_again(seen, "hang")


def test_a_decoder_that_hangs_while_http_answers_is_a_hang(
    python: Path, models: Path, row: Begin, tmp_path: Path
) -> None:
    """Saving a slot into a FIFO that nobody reads blocks the thread that decodes, for good."""
    begun, port = row("the decoding thread hangs, HTTP answers", LLAMA), free_port()
    (tmp_path / "slots").mkdir()
    os.mkfifo(tmp_path / "slots/pipe")
    text = config_of(
        python, models / "llama.gguf", port, "hang_s = 12\nconfirm_s = 5",
        args=("--slot-save-path", f"{tmp_path}/slots/"),
    )  # fmt: skip
    with fault(begun, text) as seen:
        seen.daemon.until_state("SERVING")
        seen.now()
        call = urllib.request.Request(
            f"http://127.0.0.1:{port}/slots/0?action=save",
            json.dumps({"filename": "pipe"}).encode(),
            {"Content-Type": "application/json"},
        )
        with contextlib.suppress(OSError):
            urllib.request.urlopen(call, timeout=1)
        answer = urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
        assert answer.status == 200
        assert seen.failure() == "hang"
        seen.serving()
        assert seen.left() == NOTHING


def test_a_change_of_mode_starts_a_server_that_drafts(shared: tuple[Seen, int], row: Begin) -> None:
    seen, port = shared
    seen.row = row("caovanctl mode fast, then auto", LLAMA)
    seen.daemon.until_state("SERVING")
    began = time.time()
    assert seen.daemon.ctl("mode", "fast").returncode == 0
    until(lambda: seen.daemon.status()["mtp"] == 4, "a drafting plan")
    seen.daemon.until_state("SERVING")
    assert "draft-mtp" in seen.daemon.commands()[-1]
    request(port, "tiny", 64).join()
    assert seen.daemon.ctl("mode", "auto").returncode == 0
    until(lambda: seen.daemon.status()["mtp"] == 0, "a plan without drafts")
    seen.daemon.until_state("SERVING")
    seen.daemon.spawned()
    seen.row.serving_s, seen.row.action = time.time() - began, "a new start each time"
    seen.row.left = NOTHING


def test_a_stop_ends_it_and_a_start_brings_it_back(shared: tuple[Seen, int], row: Begin) -> None:
    seen, _ = shared
    seen.row = row("caovanctl stop, then start", LLAMA)
    assert seen.daemon.ctl("stop").returncode == 0
    assert seen.daemon.until_state("STOPPED")["engine_pid"] is None
    assert seen.daemon.tree() == []
    assert seen.daemon.ctl("start").returncode == 0
    seen.daemon.until_state("SERVING")
    seen.daemon.spawned()
    seen.row.action, seen.row.left = "as asked", NOTHING


def test_a_killed_daemon_is_followed_by_one_that_ends_the_orphans(
    shared: tuple[Seen, int], row: Begin
) -> None:
    seen, _ = shared
    seen.row = begun = row("kill -9 caovand, a next one starts", LLAMA)
    one = seen.daemon
    one.until_state("SERVING")
    old = {process.pid for process in one.tree()}
    began = time.time()
    one.kill()
    seen.since = 0
    one.start()
    one.until_state("SERVING")
    begun.serving_s = time.time() - began
    begun.action = "the next daemon ends what is left"
    one.spawned()
    assert not old & {process.pid for process in processes.all_processes() if not process.zombie}
    begun.left = NOTHING


def test_a_taken_port_is_waited_for(python: Path, models: Path, row: Begin) -> None:
    begun = row("port taken by another program", LLAMA)
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        text = config_of(python, models / "llama.gguf", stranger.getsockname()[1])
        with fault(begun, text) as seen:
            assert seen.failure() == "port-busy"
            begun.action = "HOLD until it is free"
            stranger.close()
            seen.serving()
            assert seen.left() == NOTHING


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("unknown option", ("--no-such-option",)),
        ("unknown cache type", ("--cache-type-k", "q9_9")),
        ("missing chat template", ("--chat-template-file", "/nonexistent")),
    ],
)
def test_options_it_refuses_are_not_tried_again(
    python: Path, models: Path, row: Begin, name: str, args: tuple[str, ...]
) -> None:
    begun = row(name, LLAMA)
    text = config_of(python, models / "llama.gguf", free_port(), args=args)
    with fault(begun, text) as seen:
        assert seen.failure() == "bad-arguments"
        seen.failed()
        assert seen.left() == NOTHING


def test_a_broken_file_is_refused_before_any_start(
    python: Path, models: Path, row: Begin, tmp_path: Path
) -> None:
    begun = row("model file cut short", LLAMA)
    broken = tmp_path / "llama.gguf"
    shutil.copyfile(models / "llama.gguf", broken)
    os.truncate(broken, broken.stat().st_size // 2)
    with fault(begun, config_of(python, broken, free_port())) as seen:
        assert seen.failure() == "model-missing"
        seen.failed()
        assert seen.daemon.commands() == []
        assert seen.left() == NOTHING


def test_a_file_that_is_cut_while_it_serves_ends_in_a_refusal(
    python: Path, models: Path, row: Begin, tmp_path: Path
) -> None:
    """Its pages are gone: the next step is killed by SIGBUS, and the file is found broken."""
    begun = row("model file cut short while it serves", LLAMA)
    broken, port = tmp_path / "llama.gguf", free_port()
    shutil.copyfile(models / "llama.gguf", broken)
    with fault(begun, config_of(python, broken, port)) as seen:
        seen.daemon.until_state("SERVING")
        seen.now()
        os.truncate(broken, 4096)
        request(port, "tiny")
        assert seen.failure() == "engine-died"
        seen.failed()
        assert seen.left() == NOTHING


def limited(python: Path, folder: Path, kib: int) -> Path:
    """An environment whose llama-server may use so much address space; its Python."""
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    server = folder / "bin/llama-server"
    real = python.parent / "llama-server"
    server.write_text(f'#!/bin/sh\nulimit -v {kib}\nexec {real} "$@"\n')
    server.chmod(0o755)
    return folder / "bin/python"


def test_too_little_memory_lowers_the_plan_until_it_fits(
    python: Path, models: Path, row: Begin, tmp_path: Path
) -> None:
    begun = row("too little memory for the cache", LLAMA)
    small = limited(python, tmp_path / "engine", 500_000)
    text = config_of(small, models / "long.gguf", free_port())
    text = text.replace('served_name = "tiny"', "max_model_len = 1048576")
    text += "[policy]\nmax_num_batched_tokens = 32\n"
    with fault(begun, text) as seen:
        seen.at_spawn()
        assert seen.failure() == "host-oom"
        status = seen.serving()
        begun.action = f"{begun.action}; then {', '.join(status['rungs'])}"
        assert "slots 1" in status["rungs"]
        assert seen.left() == NOTHING


@pytest.mark.parametrize("state", ["STARTING", "SERVING"])
def test_sigterm_ends_everything(python: Path, models: Path, row: Begin, state: str) -> None:
    begun = row(f"SIGTERM to caovand while {state}", LLAMA)
    with fault(begun, config_of(python, models / "llama.gguf", free_port())) as seen:
        seen.daemon.until_state(state, "SERVING")
        began = time.time()
        assert seen.left() == NOTHING
        begun.action = f"stopped in {time.time() - began:.1f} s"
