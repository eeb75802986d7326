"""Faults of a real vLLM (the CPU build) on a tiny hybrid model with an MTP head."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from caovand.adapters.system import processes
from caovand.preparation import memories
from tests.faults.seen import NOTHING, Row, Seen, fault, request
from tests.patience import until
from tests.ports import free_port
from tests.real_engine import MODELS, configuration, found_out

pytestmark = [pytest.mark.engine, pytest.mark.long]
Begin = Callable[[str, str], Row]
PLUGIN = "caovan_vllm_sm75_turbo3"
VLLM = "vLLM CPU"


def config_of(
    engine: Path, port: int, *, model: str = "hybrid", args: tuple[str, ...] = (), more: str = ""
) -> str:
    """A configuration with more verbatim flags and more keys of [watch]."""
    text = configuration(engine, model, port, more)
    words = "".join(f', "{word}"' for word in args)
    return text.replace('"64M"]', f'"64M"{words}]')


def pid_of(seen: Seen, name: str) -> int:
    """The engine's process whose name or command line has this in it."""
    for process in seen.daemon.tree():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode("utf-8", "replace")
            if name in process.name or name in words:
                return process.pid
    raise AssertionError(f"no {name} among {seen.daemon.tree()}")


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """A file system of 16 MiB; None where we are not root and cannot mount it."""
    place = tmp_path_factory.mktemp("small")
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)]
    if subprocess.run(mount, check=False).returncode:
        yield None
        return
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture(scope="module")
def held_up(
    engine: Path, small_disk: Path | None
) -> Iterator[tuple[Seen, int, Callable[[], None]]]:
    """The daemon of `shared`, its port, which a stranger has, and what makes the stranger leave."""
    more = "hang_s = 5\nconfirm_s = 5\nrecheck_s = 1"
    names = {"STATE_DIRECTORY": "state", "LOGS_DIRECTORY": "log"}
    places = {name: f"{small_disk}/{folder}" for name, folder in names.items() if small_disk}
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = int(stranger.getsockname()[1])
        # The model that loads in the least time.
        config = config_of(engine, port, model="dense", more=more)
        with fault(Row("", VLLM), config, places, found_out(engine)) as seen:
            yield seen, port, stranger.close
            assert seen.left() == NOTHING


@pytest.fixture(scope="module")
def shared(held_up: tuple[Seen, int, Callable[[], None]]) -> tuple[Seen, int]:
    """One daemon for faults of a serving engine: each row leaves it serving."""
    seen, port, leave = held_up
    leave()
    seen.daemon.until_state("SERVING")
    seen.daemon.spawned()
    return seen, port


def serves_again(seen: Seen, expected: str) -> None:
    """The row of a fault that a new start mends, with nothing of the old engine left."""
    old = {process.pid for process in seen.daemon.tree()}
    assert seen.failure() == expected
    seen.serving()
    seen.daemon.spawned()
    left_behind(seen, old)


def left_behind(seen: Seen, gone: set[int]) -> None:
    """None of the processes that must be gone lives, and no shared memory is without a user."""
    alive = {process.pid for process in processes.all_processes() if not process.zombie}
    left = [f"pid {pid}" for pid in gone & alive] + sorted(seen.unused())
    seen.row.left = ", ".join(left) or NOTHING
    assert seen.row.left == NOTHING


def test_a_taken_port_is_waited_for(
    held_up: tuple[Seen, int, Callable[[], None]], row: Begin
) -> None:
    seen, _, leave = held_up
    seen.row = begun = row("port taken by another program", VLLM)
    assert seen.failure() == "port-busy"
    begun.action = "HOLD until it is free"
    leave()
    seen.serving()
    left_behind(seen, set())


# The engine core is killed in tests/e2e/hybrid.
@pytest.mark.parametrize(
    "name", ["API server", pytest.param("VLLM::Worker", marks=pytest.mark.exhaustive)]
)
def test_a_killed_process_is_noticed_and_all_the_others_ended(
    shared: tuple[Seen, int], row: Begin, name: str
) -> None:
    seen, _ = shared
    seen.row = row(f"kill -9 {name}", VLLM)
    status = seen.daemon.until_state("SERVING")
    pid = status["engine_pid"] if name == "API server" else pid_of(seen, name)
    seen.now()
    os.kill(pid, signal.SIGKILL)
    serves_again(seen, "engine-died")


def test_a_killed_resource_tracker_does_not_hurt(shared: tuple[Seen, int], row: Begin) -> None:
    seen, port = shared
    seen.row = row("kill -9 resource tracker", VLLM)
    pid = seen.daemon.until_state("SERVING")["engine_pid"]
    killed = pid_of(seen, "resource_tracker")
    os.kill(killed, signal.SIGKILL)
    request(port, "tiny").join()
    status = seen.daemon.status()
    assert (status["state"], status["engine_pid"]) == ("SERVING", pid)
    seen.row.action = "none needed: it goes on serving"
    # What it kept a list of is still in use; what else is left ends with the engine.
    left_behind(seen, {killed})


def test_a_stopped_engine_core_with_a_request_waiting_is_a_hang(
    shared: tuple[Seen, int], row: Begin
) -> None:
    seen, port = shared
    seen.row = row("kill -STOP engine core, a request waits", VLLM)
    seen.daemon.until_state("SERVING")
    seen.now()
    os.kill(pid_of(seen, "VLLM::EngineCor"), signal.SIGSTOP)
    request(port, "tiny")
    serves_again(seen, "hang")
    report = seen.daemon.ctl("incidents", "--json").stdout
    assert '"hang"' in report
    (folder,) = (memories.folder(seen.daemon.state) / "incidents").glob("*-hang")
    stacks = (folder / "stacks.txt").read_text()
    core = stacks.partition("=== VLLM::EngineCor")[2].partition("===")[0]
    assert "/core.py:" in core or "Permission" in core, stacks


def test_a_killed_daemon_is_followed_by_one_that_ends_the_orphans_and_knows_its_answers(
    shared: tuple[Seen, int], row: Begin
) -> None:
    seen, _ = shared
    seen.row = begun = row("kill -9 caovand, a next one starts", VLLM)
    one = seen.daemon
    one.until_state("SERVING")
    old = {process.pid for process in one.tree()}
    began = time.time()
    one.kill()
    # As if the engines before had answered the fixed prompt otherwise, at a near tie.
    answers = memories.folder(one.state) / memories.ANSWERS
    ((plan, (tokens, margins)),) = json.loads(answers.read_text()).items()
    assert len(tokens) == len(margins) == 16
    answers.write_text(json.dumps({plan: [["other", *tokens[1:]], [0.1, *margins[1:]]]}))
    seen.since = 0
    one.start()
    assert one.until_state("SERVING")["last_failure"] is None
    begun.serving_s = time.time() - began
    assert "after a near tie: rounding explains the difference" in " ".join(one.events())
    assert len(json.loads(answers.read_text())) == 1
    begun.action = "the next daemon ends what is left"
    one.spawned()
    assert not old & {process.pid for process in processes.all_processes() if not process.zombie}
    begun.left = ", ".join(sorted(seen.unused())) or NOTHING
    assert begun.left == NOTHING


@pytest.mark.exhaustive
def test_a_full_disk_hurts_neither_serving_nor_a_new_start(
    shared: tuple[Seen, int], small_disk: Path | None, row: Begin
) -> None:
    """The last row of its daemon, which must end it and leave nothing on a full disk, too."""
    if small_disk is None:
        pytest.skip("cannot mount a small file system: needs root")
    seen, _ = shared
    seen.row = row("disk full (state and log), then kill -9 core", VLLM)
    seen.daemon.until_state("SERVING")
    with contextlib.suppress(OSError), open(small_disk / "filler", "wb", 0) as file:
        while file.write(bytes(4096)):
            pass
    old = {process.pid for process in seen.daemon.tree()}
    seen.now()
    os.kill(pid_of(seen, "VLLM::EngineCor"), signal.SIGKILL)
    until(lambda: "cannot write an incident" in " ".join(seen.daemon.events()), "the notice")
    assert seen.failure(kept=False) == "engine-died"
    seen.serving()
    seen.daemon.spawned()
    left_behind(seen, old)


def test_a_kv_cache_too_small_shortens_the_context(engine: Path, row: Begin) -> None:
    begun = row("KV cache too small for the context", VLLM)
    port = free_port()
    # Hardly more than fits: a plan that is clearly too long would be shortened before its start.
    config = config_of(engine, port).replace('"64M"', '"24M"').replace("2048", "48128")
    with fault(begun, config, found_out=found_out(engine)) as seen:
        seen.at_spawn()
        assert seen.failure() == "kv-cache-short"
        status = seen.serving()
        assert status["rungs"][0].startswith("context ")
        assert seen.left() == NOTHING


def test_an_argument_that_vllm_refuses_is_not_tried_again(engine: Path, row: Begin) -> None:
    begun = row("seed that is no number", VLLM)
    args = ("--seed", "banana")
    config = config_of(engine, free_port(), args=args)
    with fault(begun, config, found_out=found_out(engine)) as seen:
        assert seen.failure() == "bad-arguments"
        seen.failed()
        assert seen.left() == NOTHING


@pytest.mark.exhaustive
def test_a_broken_model_folder_is_the_operators_to_fix(
    engine: Path, row: Begin, tmp_path: Path
) -> None:
    begun = row("model file cut short", VLLM)
    broken = tmp_path / "hybrid"
    shutil.copytree(MODELS / "hybrid", broken)
    weights = max(broken.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    os.truncate(weights, weights.stat().st_size // 2)
    config = config_of(engine, free_port(), model=str(broken))
    with fault(begun, config, found_out=found_out(engine)) as seen:
        assert seen.failure() == "model-missing"
        seen.failed()
        assert seen.left() == NOTHING


def plugin(folder: Path, register: str) -> str:
    """A plugin of our name whose entry point runs `register`; the [engine] key that loads it."""
    package, told = folder / PLUGIN, folder / f"{PLUGIN}-99.dist-info"
    package.mkdir()
    told.mkdir()
    (package / "__init__.py").write_text(register)
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PLUGIN}\nVersion: 99\n")
    (told / "entry_points.txt").write_text(
        f"[vllm.general_plugins]\n{PLUGIN} = {PLUGIN}:register\n"
    )
    return f'env = {{ PYTHONPATH = "{folder}" }}'


AT_LOAD = """
def register():
    raise RuntimeError("cannot load: the kernels' library is of another version")
"""
SERVING = """
import os

def register():
    from vllm.v1.worker import worker_base
    plain = worker_base.WorkerWrapperBase.execute_model

    def execute_model(self, *args, **kwargs):
        if os.path.exists("{mark}"):
            raise RuntimeError("cannot run gdn_prefill: chunk of 64 tokens expected, got 63")
        return plain(self, *args, **kwargs)

    worker_base.WorkerWrapperBase.execute_model = execute_model
"""


@pytest.mark.exhaustive
def test_a_plugin_that_raises_at_load_is_turned_off(
    engine: Path, row: Begin, tmp_path: Path
) -> None:
    begun = row("plugin raises at load", VLLM)
    config = config_of(engine, free_port())
    config = config.replace("[watch]", f"{plugin(tmp_path, AT_LOAD)}\n[watch]")
    with fault(begun, config, found_out=found_out(engine)) as seen:
        seen.at_spawn()
        assert seen.failure() == "plugin-error"
        assert seen.serving()["rungs"] == ["plugin-off"]
        assert seen.left() == NOTHING


def test_a_plugin_that_raises_while_serving_is_turned_off(
    engine: Path, row: Begin, tmp_path: Path
) -> None:
    begun = row("plugin raises while serving", VLLM)
    mark, port = tmp_path / "raise", free_port()
    register = SERVING.replace("{mark}", str(mark))
    config = config_of(engine, port).replace("[watch]", f"{plugin(tmp_path, register)}\n[watch]")
    with fault(begun, config, found_out=found_out(engine)) as seen:
        seen.daemon.until_state("SERVING")
        seen.now()
        mark.touch()
        request(port, "tiny")
        assert seen.failure() == "plugin-error"
        assert seen.serving()["rungs"] == ["plugin-off"]
        assert seen.left() == NOTHING


def test_mtp_with_prefix_caching_dies_after_readiness_and_is_climbed_down(
    engine: Path, row: Begin
) -> None:
    begun = row("MTP with prefix caching (CPU build)", VLLM)
    args = ("--enable-prefix-caching",)
    config = config_of(engine, free_port(), args=args, more='[policy]\nmode = "stable"')
    with fault(begun, config, found_out=found_out(engine)) as seen:
        seen.at_spawn()
        assert seen.failure() == "engine-died"
        status = seen.serving()
        begun.action = f"{begun.action}; then {', '.join(status['rungs'])}"
        assert status["rungs"] == ["mtp-off off"]
        assert "--enable-prefix-caching" in " ".join(status["obstacles"])
        assert seen.left() == NOTHING


PHASES = ("launch", "resolve", "engine", "load", "warmup", "http", "proof", "SERVING")


@pytest.mark.parametrize("phase", [pytest.param("resolve", marks=pytest.mark.exhaustive), "warmup"])
def test_sigterm_while_starting_ends_everything(engine: Path, row: Begin, phase: str) -> None:
    begun = row(f"SIGTERM to caovand in phase {phase}", VLLM)
    # Where the model's class is known, there is no process that looks at it in "resolve".
    known = None if phase == "resolve" else found_out(engine)
    with fault(begun, config_of(engine, free_port()), found_out=known) as seen:
        place = PHASES.index(phase)

        def reached() -> str:
            status = seen.daemon.status()
            if status["state"] == "SERVING":
                return "SERVING"
            now = status["phase"]
            return now if now in PHASES and PHASES.index(now) >= place else ""

        found = until(reached, f"phase {phase}")
        began = time.time()
        assert seen.left() == NOTHING
        begun.action = f"stopped in {time.time() - began:.1f} s (in {found})"
