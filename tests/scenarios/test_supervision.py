"""The whole daemon over a stand-in engine: every way an engine can end, and what follows."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from caovand.adapters.system import processes
from tests.daemon_process import ROOT, Daemon, daemon, lives
from tests.patience import until
from tests.ports import free_port
from tests.secret_files import secret_file
from tests.standin_daemon import ENGINE, configuration, make_model
from tests.terminal import Terminal

__all__ = ["CONTEXT_TOO_LONG", "configuration", "make_model", "model"]
RECHECK = "recheck_s = 1"
CONTEXT_TOO_LONG = (
    "(EngineCore pid=2) ERROR 11-20 08:53:13 [core.py:1584] ValueError: To serve at least one "
    "request with the model's max seq len (2048), (0.06 GiB KV cache is needed, which is "
    "larger than the available KV cache memory (0.02 GiB). Based on the available memory, the "
    "estimated maximum model length is 1030. Try increasing `gpu_memory_utilization`."
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("m") / "hybrid")


def counted(one: Daemon) -> dict[str, Any] | None:
    """What its engines counted, once the present one was asked."""
    figures = one.status()["figures"]
    return None if figures["running"] is None else dict(figures["totals"])


def test_it_serves_after_two_real_completions_and_says_what_and_where(model: Path) -> None:
    with daemon(configuration(model)) as one:
        status = one.until_state("SERVING")
        assert status["served"]["name"] == "hybrid"
        assert status["mtp"] == 3
        assert status["restarts"] == 0
        totals = until(lambda: counted(one), "counters read from /metrics")
        assert totals["requests"] == 3  # two of the proof, and the fixed prompt
        assert totals["drafted_tokens"] == 3 * 3
        assert one.ctl("status").returncode == 0
        assert "SERVING" in one.ctl("status").stdout


def test_an_engine_that_ends_with_status_0_while_serving_has_failed(model: Path) -> None:
    with daemon(configuration(model)) as one:
        pid = one.until_state("SERVING")["engine_pid"]
        os.kill(pid, signal.SIGTERM)  # the stand-in ends in good order, status 0
        until(lambda: "exit status 0" in " ".join(one.events()), "the failure")
        assert one.until_state("SERVING")["restarts"] == 1
        assert " ".join(one.events()).count("exit status 0") == 1  # told once, not at each step


def test_a_killed_api_server_leaves_no_engine_core_behind(model: Path) -> None:
    orders = {"escape": "escapee"}
    with daemon(configuration(model, orders)) as one:
        pid = one.until_state("SERVING")["engine_pid"]
        old = {p.pid for p in one.tree()}
        assert len(old) >= 2
        os.kill(pid, signal.SIGKILL)
        until(lambda: one.status()["engine_pid"] not in (pid, None), "a new engine")
        assert not [p for p in processes.all_processes() if p.pid in old and not p.zombie]
        one.until_state("SERVING")


def test_a_process_that_left_the_session_is_ended_too(model: Path) -> None:
    name = f"escapee-{os.getpid()}"

    def escapees() -> list[processes.Process]:
        return [p for p in processes.all_processes() if p.name == name and not p.zombie]

    with daemon(configuration(model, {"escape": name})) as one:
        one.until_state("SERVING")
        until(escapees, "the escapee")
        assert one.ctl("stop").returncode == 0
        assert escapees() == []
        assert one.tree() == []


@pytest.mark.long
def test_failures_of_one_unchanged_plan_end_in_failed_with_the_cause(model: Path) -> None:
    orders = {"die_at": "load", "status": 1}
    config = configuration(model, orders, watch="failures = 2", policy="strict = true")
    with daemon(config) as one:
        status = one.until_state("FAILED")
        assert status["failures"] == 2
        assert "phase load" in status["last_failure"]["text"]
        assert "exit status 1" in status["last_failure"]["text"]
        assert one.ctl("wait", "--settled").returncode == 0
        assert one.ctl("status").returncode == 3
        spawned = len(one.spawned())
        one.ctl("start", "--no-wait")
        until(lambda: len(one.spawned()) > spawned, "another attempt when asked")


def test_a_context_too_long_is_shortened_to_what_vllm_says_would_fit(model: Path) -> None:
    orders = {"at": {"kv": CONTEXT_TOO_LONG}, "die_at": "kv", "unless": "1024"}
    with daemon(configuration(model, orders)) as one:
        status = one.until_state("SERVING")
        assert status["rungs"] == ["context 1024"]
        assert status["last_failure"]["failure"] == "kv-cache-short"
        assert "context 2048 -> 1024" in " ".join(one.events())
        assert "degraded plan: context 1024" in one.events()
        assert "degraded" in one.ctl("status").stdout


@pytest.mark.long
def test_the_degraded_plan_that_served_is_kept_until_it_is_reset(model: Path) -> None:
    orders = {"at": {"kv": CONTEXT_TOO_LONG}, "die_at": "kv", "unless": "1024"}
    with daemon(configuration(model, orders, watch="stable_after_s = 1")) as one:
        one.until_state("SERVING")
        until((one.folder / "state/slots/main/good-plan.json").exists, "the memory of it")
        pid = one.status()["engine_pid"]
        assert one.ctl("reload").returncode == 0
        assert one.status()["engine_pid"] == pid, "a reload keeps the steps of the living engine"
        one.stop()
        one.start()
        status = one.until_state("SERVING")
        assert (status["rungs"], status["failures"]) == (["context 1024"], 0)
        assert one.ctl("retry", "--full").returncode == 0
        status = one.status()
        assert status["rungs"] == ["context 1024"], "the full plan failed: the good one came back"
        assert "back to the plan that served" in " ".join(one.events())
        assert "1024" in one.commands()[-1]
        before = len(one.commands())
        one.ctl("reset", "--no-wait")
        until(lambda: len(one.commands()) > before, "another start")
        assert "1024" not in one.commands()[before], "the full plan instead of the living one"
        until(lambda: "the full plan again" in one.events(), "an event about it")


@pytest.mark.long
def test_a_bad_argument_is_not_tried_again(model: Path) -> None:
    orders = {"print": ["vllm: error: unrecognized arguments: --nonsense"], "die_at": "resolve"}
    with daemon(configuration(model, {**orders, "status": 2})) as one:
        status = one.until_state("FAILED")
        assert status["last_failure"]["failure"] == "bad-arguments"
        assert len(one.spawned()) == 1


@pytest.mark.long
def test_an_engine_that_swallows_term_while_starting_is_stopped_all_the_same(model: Path) -> None:
    config = configuration(model, {"ignore_term": True, "boot_s": 60})
    with daemon(config) as one:
        until(lambda: one.status()["engine_pid"], "an engine")
        assert one.ctl("stop").stdout.strip() == "STOPPED"
        assert one.tree() == []


@pytest.mark.long
def test_a_request_that_never_comes_back_in_the_proof_is_a_failure(model: Path) -> None:
    config = configuration(model, {"hang": True}, watch="stall_s = 10\nfailures = 1")
    with daemon(config) as one:
        status = one.until_state("FAILED")
        assert "first completion" in status["last_failure"]["text"]
        assert one.tree() == []


@pytest.mark.long
def test_a_taken_port_is_named_with_its_owner_and_waited_for(model: Path) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        config = configuration(model, watch=RECHECK).replace("port = ", f"port = {port} # ")
        with daemon(config) as one:
            status = one.until_state("HOLD")
            assert f"(pid {os.getpid()})" in status["reason"]
            assert one.spawned() == []
            stranger.close()
            one.until_state("SERVING")


def test_a_configuration_that_is_invalid_at_start_exits_78_with_every_finding(
    tmp_path: Path,
) -> None:
    path = tmp_path / "caovan.toml"
    path.write_text("[model]\nmax_model_length = 1\n[server]\nport = 0\n")
    done = subprocess.run(
        [sys.executable, "-m", "caovand", "--config", str(path)],
        capture_output=True, text=True, check=False, cwd=ROOT, timeout=60,
    )  # fmt: skip
    assert done.returncode == 78
    assert 'did you mean "max_model_len"?' in done.stderr
    assert "[server] port" in done.stderr


@pytest.mark.long
def test_no_engine_is_waited_for_and_no_model_is_the_operators_to_fix(model: Path) -> None:
    config = configuration(model).replace(str(ENGINE), "/nonexistent/python")
    with daemon(config) as one:
        status = one.until_state("HOLD")
        assert "caovanctl engine install" in status["reason"]
        assert one.ctl("status").returncode == 3
        one.config_path.write_text(configuration(Path("/nonexistent/model")))
        assert one.ctl("reload").returncode != 0
        assert "/nonexistent/model" in one.until_state("FAILED")["reason"]


@pytest.mark.long
def test_a_hold_whose_reason_changes_says_so(model: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    config = configuration(model, watch=RECHECK).replace(str(ENGINE), str(python))
    with daemon(config) as one:
        before = one.until_state("HOLD")
        python.write_text("#!/bin/sh\necho no torch here >&2\nexit 1\n")
        python.chmod(0o755)
        (told,) = until(
            lambda: [text for text in one.events() if text.startswith("still HOLD")], "an event"
        )
        status = one.status()
        assert (status["state"], told) == ("HOLD", f"still HOLD: {status['reason']}")
        assert status["reason"] != before["reason"]
        assert status["since_s"] > before["since_s"]


def test_a_reload_restarts_the_engine_only_when_its_plan_changes(model: Path) -> None:
    config = configuration(model)
    with daemon(config) as one:
        pid = one.until_state("SERVING")["engine_pid"]
        done = one.ctl("reload")
        assert done.returncode == 0
        assert "plan unchanged" in done.stdout
        assert one.status()["engine_pid"] == pid

        one.config_path.write_text("[model]\nmax_model_length = 3\n")
        done = one.ctl("reload")
        assert done.returncode == 1
        assert "max_model_len" in done.stderr
        assert one.status()["state"] == "SERVING"

        one.config_path.write_text(config + '\n[policy]\nmtp = 1\n[log]\nlevel = "warning"\n')
        done = one.ctl("reload")
        assert done.returncode == 0
        restart = "not applied until caovan restarts (sudo systemctl restart caovan)"
        assert f"{restart}: [log] level\n" in done.stderr
        assert "not applied until caovan restarts: [log] level" in one.events()
        # It is still not applied, until the file has again what the daemon began with.
        assert f"{restart}: [log] level\n" in one.ctl("reload").stderr
        one.config_path.write_text(config + "\n[policy]\nmtp = 1\n")
        assert restart not in one.ctl("reload").stderr
        status = one.status()
        assert status["mtp"] == 1
        assert status["engine_pid"] != pid
        said = one.ctl("mode", "fast").stdout
        assert "mode fast does not decide the MTP depth: [policy] mtp is 1" in said


@pytest.mark.long
def test_a_reload_whose_plan_is_refused_leaves_the_engine_serving(model: Path) -> None:
    config = configuration(model)
    with daemon(config) as one:
        pid = one.until_state("SERVING")["engine_pid"]
        one.config_path.write_text(config.replace(str(model), "/nonexistent/model"))
        done = one.ctl("reload")
        assert done.returncode == 1
        assert "/nonexistent/model" in done.stderr
        assert one.status()["engine_pid"] == pid
        typo = 'extra_args = ["--enforce-eagre"]'
        one.config_path.write_text(config.replace("[watch]", f"{typo}\n[watch]"))
        done = one.ctl("reload")
        assert done.returncode == 1
        assert "has no such flag; use --enforce-eager" in done.stderr
        assert one.status()["engine_pid"] == pid


@pytest.mark.long
def test_a_reload_whose_engine_does_not_start_comes_back_with_what_served(model: Path) -> None:
    config = configuration(model)
    broken = {"print": ["vllm: error: not on Thursdays"], "die_at": "resolve", "status": 2}
    with daemon(config) as one:
        one.until_state("SERVING")
        first = one.commands()[-1]
        orders = json.dumps(json.dumps(broken))
        one.config_path.write_text(config.replace('STANDIN = "{}"', f"STANDIN = {orders}"))
        for verb in (["reload"], ["retry"]):
            done = one.ctl(*verb)
            assert done.returncode == 1
            assert "nothing changed: the changed plan failed: vllm: error: not on" in done.stderr
            status = one.status()
            assert (status["state"], status["failures"]) == ("SERVING", 0)
            assert "not on Thursdays" in status["refusal"]["text"]
            assert one.commands()[-1] == first
        starts = len(one.spawned())
        done = one.ctl("reload")
        assert done.returncode == 1
        assert "the changed plan failed" in done.stderr
        assert len(one.spawned()) == starts, "what is known to fail is not tried by a reload"
        assert "back to the plan that served before the change" in " ".join(one.events())
        one.config_path.write_text(config)
        assert one.ctl("reload").returncode == 0
        assert one.status()["refusal"] is None
        assert len(one.spawned()) == starts


@pytest.mark.long
def test_a_chosen_mode_is_remembered_over_restarts_of_the_daemon(model: Path) -> None:
    with daemon(configuration(model)) as one:
        one.until_state("SERVING")
        assert one.ctl("mode", "fast").returncode == 0
        assert one.status()["mtp"] == 4
        assert one.ctl("mode", "auto", "--defer").returncode == 0
        assert one.status()["mtp"] == 4
        shown = " ".join(one.ctl("status").stdout.split())
        assert "auto (from caovanctl mode), MTP 4; applies from the next start" in shown
        assert "(the engine runs with fast)" in shown
        # A start after a crash is one, too.
        os.kill(one.status()["engine_pid"], signal.SIGKILL)
        until(lambda: one.status()["mtp"] == 3, "the deferred mode")
        one.until_state("SERVING")
        assert one.ctl("mode", "stable", "--defer").returncode == 0
        assert one.stop() == 0
        one.start()
        status = one.until_state("SERVING")
        assert (status["mode"], status["mtp"]) == ("stable", 3)
        assert status["mode_origin"] == "caovanctl mode"
        one.ctl("mode", "--default")
        assert "caovan.toml" in one.ctl("mode").stdout


@pytest.mark.long
def test_what_a_killed_daemon_left_is_ended_by_the_next_one(model: Path) -> None:
    # The wrapper's parent-death TERM is swallowed, so everything survives the daemon.
    with daemon(configuration(model, {"ignore_term": True})) as one:
        one.until_state("SERVING")
        left = {p.pid for p in one.tree()}
        one.kill()
        assert {p.pid for p in one.tree()} == left
        one.start()
        one.until_state("SERVING")
        told = next(
            text for text in one.events() if text.startswith("killed orphans of an earlier")
        )
        assert all(f"(pid {pid})" in told for pid in left)
        assert not left & {p.pid for p in processes.all_processes() if not p.zombie}


@pytest.mark.long
def test_a_second_daemon_on_the_same_folder_is_refused_with_the_pid_of_the_first(
    model: Path,
) -> None:
    with daemon(configuration(model)) as one:
        second = subprocess.run(
            [sys.executable, "-m", "caovand", "--config", str(one.config_path)],
            env=one.environ, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert second.returncode == 1
        assert one.process is not None
        assert f"pid {one.process.pid}" in second.stderr
        assert one.answers()


def test_an_api_key_reaches_the_engine_by_environment_and_is_printed_nowhere(
    model: Path, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    secret_file(key, "sesame-4711\n")
    orders = {"print": ["the key is sesame-4711, says a careless engine"]}
    config = configuration(model, orders, server=f'api_key_file = "{key}"')
    with daemon(config) as one:
        pid = one.until_state("SERVING")["engine_pid"]
        assert b"sesame" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert b"sesame" in Path(f"/proc/{pid}/environ").read_bytes()
        assert "the key is [secret]" in one.ctl("logs").stdout
        for text in (one.log(), one.ctl("events", "--json").stdout, one.ctl("status").stdout):
            assert "sesame" not in text


@contextlib.contextmanager
def notify_socket(folder: Path) -> Iterator[socket.socket]:
    """A socket where systemd would listen."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(folder / "notify"))
        listener.settimeout(60)
        yield listener


def silent(listener: socket.socket) -> bool:
    """Whether nothing more comes, what is already there left aside."""
    try:
        while listener.recv(4096):
            pass
    except TimeoutError:
        return True
    return False


def test_systemd_is_told_ready_status_and_watchdog_and_a_frozen_daemon_tells_nothing(
    model: Path, tmp_path: Path
) -> None:
    with notify_socket(tmp_path) as systemd:
        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "600000"}
        heard: list[str] = []

        def hear(mark: str) -> bool:
            heard.append(systemd.recv(4096).decode())
            return mark in heard[-1]

        with daemon(configuration(model, {"boot_s": 0.2}), environ) as one:
            until(lambda: hear("READY=1"), "READY")
            until(lambda: hear("STATUS=SERVING"), "the status")
            until(lambda: hear("WATCHDOG=1"), "the watchdog")
            engine = Path(f"/proc/{one.status()['engine_pid']}/environ").read_bytes()
            assert b"NOTIFY_SOCKET" not in engine
            one.kill(signal.SIGSTOP)
            systemd.settimeout(3)
            assert silent(systemd)
            one.kill(signal.SIGCONT)
            systemd.settimeout(60)
            until(lambda: hear("WATCHDOG=1"), "the watchdog again")
            assert one.stop() == 0
        until(lambda: hear("STOPPING=1"), "STOPPING")


@pytest.mark.long
def test_hup_reloads_and_int_stops_cleanly(model: Path) -> None:
    config = configuration(model)
    with daemon(config) as one:
        one.until_state("SERVING")
        one.config_path.write_text(config + "\n[policy]\nmtp = 2\n")
        one.kill(signal.SIGHUP)
        until(lambda: one.status()["mtp"] == 2 and one.status()["state"] == "SERVING", "MTP 2")
        tree = {p.pid for p in one.tree()}
        one.kill(signal.SIGINT)
        assert one.process is not None
        assert one.process.wait(60) == 0
        assert not tree & {p.pid for p in processes.all_processes() if not p.zombie}


def test_logs_and_events_are_followed_as_they_come(model: Path) -> None:
    with daemon(configuration(model)) as one:
        one.until_state("SERVING")
        assert "Application startup complete" in one.ctl("logs", "-n", "200").stdout
        follower = subprocess.Popen(
            [sys.executable, "-m", "caovand.cli.main", "events", "-f"],
            env=one.environ, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert follower.stdout is not None
            one.ctl("mode", "fast", "--no-wait")
            for line in follower.stdout:
                if "mode fast" in line:
                    break
        finally:
            follower.kill()
            follower.wait()


@pytest.mark.long
def test_a_daemon_that_is_stopped_leaves_no_file_but_state_cache_and_logs(model: Path) -> None:
    with daemon(configuration(model)) as one:
        one.until_state("SERVING")
        assert one.stop() == 0
        assert not (one.folder / "state/slots/main/engine-processes.json").exists()
        assert one.ctl("status").returncode == 4


def _send_garbage(one: Daemon, count: int) -> None:
    context = zmq.Context()
    link = context.socket(zmq.DEALER)
    link.setsockopt(zmq.LINGER, 0)
    link.connect(f"ipc://{one.folder}/run/control")
    shapes = (b"", b"{", b"[" * 1000, b"\xff\x00", b"null", b'{"v":1,"op":3}', b'{"v":9,"op":"x"}')
    for number in range(count):
        link.send_multipart([shapes[number % len(shapes)]] * (1 + number % 4))
        while link.poll(0):
            link.recv_multipart()
    context.destroy(linger=0)


@pytest.mark.long
def test_a_hundred_thousand_malformed_frames_leave_it_serving(model: Path) -> None:
    with daemon(configuration(model)) as one:
        pid = one.until_state("SERVING")["engine_pid"]
        _send_garbage(one, 100_000)
        status = one.status()
        assert (status["state"], status["engine_pid"]) == ("SERVING", pid)


@pytest.mark.long
def test_each_failure_leaves_an_incident_that_can_be_read_and_packed(
    model: Path, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    secret_file(key, "sesame-4711\n")
    orders = {"at": {"kv": CONTEXT_TOO_LONG}, "die_at": "kv", "unless": "1024"}
    config = configuration(model, orders, server=f'api_key_file = "{key}"')
    with daemon(config) as one:
        one.until_state("SERVING")
        (row,) = until(lambda: json.loads(one.ctl("incidents", "--json").stdout), "an incident")
        assert (row["failure"], row["action"]) == ("kv-cache-short", "context 2048 -> 1024")
        assert "kv-cache-short" in one.ctl("incidents").stdout
        report = json.loads(one.ctl("incidents", "show", "1", "--json").stdout)
        assert "estimated maximum model length is 1030" in report["cause"]["line"]
        answer = report["answer"]
        assert (answer["certainty"], answer["heals"]) == ("certain", "yes")
        assert answer["changes"][0]["value"] == 1024
        assert answer["how"].startswith("context 2048 -> 1024")
        assert report["plan"]["settings"]["max_model_len"]["value"] == 2048
        assert report["processes"][0]["pid"] > 1
        assert "> (EngineCore" in one.ctl("incidents", "show", "1").stdout
        assert one.ctl("incidents", "bundle", "1", str(tmp_path / "b.tar.gz")).returncode == 0
        with tarfile.open(tmp_path / "b.tar.gz") as archive:
            names = {Path(name).name for name in archive.getnames()}
            texts = [archive.extractfile(member).read() for member in archive]  # type: ignore[union-attr]
        assert {"incident.json", "log.txt"} <= names
        assert not [text for text in texts if b"sesame" in text]
        assert one.ctl("incidents", "show", "7").returncode == 1


@pytest.mark.long
def test_the_proof_of_an_engine_that_died_is_not_given_by_the_next_one(model: Path) -> None:
    orders = {"at": {"kv": CONTEXT_TOO_LONG}, "die_at": "kv", "unless": "1024"}
    with daemon(configuration(model, orders)) as one:
        one.until_state("SERVING")
        totals = until(lambda: counted(one), "counters read from /metrics")
        assert totals["requests"] == 3


@pytest.mark.long
def test_a_second_daemon_with_the_same_state_leaves_the_first_ones_engine_alone(
    model: Path,
) -> None:
    with daemon(configuration(model)) as one:
        pid = one.until_state("SERVING")["engine_pid"]
        second = subprocess.run(
            [sys.executable, "-m", "caovand", "--config", str(one.config_path)],
            env={**one.environ, "RUNTIME_DIRECTORY": str(one.folder / "run-2")},
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert second.returncode == 1
        assert "STATE_DIRECTORY" in second.stderr
        assert one.status()["engine_pid"] == pid


@pytest.mark.long
def test_a_stop_does_not_wait_for_an_inspection(model: Path) -> None:
    """The engine's Python may take a minute to answer, a hung driver never does."""
    with daemon(configuration(model)) as one:
        one.until_state("SERVING")
        slow = one.folder / "python"
        slow.write_text("#!/bin/sh\nexec sleep 500\n")
        slow.chmod(0o755)
        one.config_path.write_text(configuration(model).replace(str(ENGINE), str(slow)))
        one.ctl("reload", "--no-wait")
        one.ctl("stop")
        begun = time.monotonic()
        assert one.stop() == 0
        assert time.monotonic() - begun < 50, "the inspection's own limit is 60 s"


@pytest.mark.long
def test_a_key_that_comes_or_changes_restarts_the_engine(model: Path, tmp_path: Path) -> None:
    config, key = configuration(model), tmp_path / "key"
    secret_file(key, "sesame-4711")
    with daemon(config) as one:
        pid = one.until_state("SERVING")["engine_pid"]
        port = "[server]\n"
        one.config_path.write_text(config.replace(port, f'{port}api_key_file = "{key}"\n'))
        assert one.ctl("reload").returncode == 0
        second = one.status()["engine_pid"]
        assert second != pid
        secret_file(key, "sesame-4712")
        assert one.ctl("reload").returncode == 0
        assert one.status()["engine_pid"] != second


FAULTY = """
import os, sys
from caovand.__main__ import main
from caovand.daemon.start import inspection
plain = inspection.check_cheap

def check_cheap(request):
    if os.path.exists("{mark}"):
        raise KeyError("a fault of ours")
    plain(request)

inspection.check_cheap = check_cheap
sys.argv = ["caovand", *sys.argv[4:]]
sys.exit(main())
"""
"""Runs a daemon that cannot plan while the file {mark} is there."""


@pytest.mark.long
def test_a_fault_of_ours_while_planning_costs_no_engine_that_serves(
    model: Path, tmp_path: Path
) -> None:
    mark = tmp_path / "fault"
    wrapper = (sys.executable, "-c", FAULTY.replace("{mark}", str(mark)))
    with daemon(configuration(model), wrapper=wrapper) as one:
        pid = one.until_state("SERVING")["engine_pid"]
        mark.touch()
        done = one.ctl("reload")
        assert done.returncode == 1
        assert "please report it" in done.stderr
        assert (one.status()["state"], one.status()["engine_pid"]) == ("SERVING", pid)


@pytest.mark.long
def test_the_port_that_is_looked_at_is_the_engines_own(model: Path) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        taken, engine = stranger.getsockname()[1], f'extra_args = ["--port", "{free_port()}"]'
        config = configuration(model, engine=engine).replace("port = ", f"port = {taken} # ")
        with daemon(config) as one:
            one.until_state("SERVING")


@pytest.mark.long
def test_a_closed_terminal_ends_everything(model: Path) -> None:
    """HUP reloads, but a window that is closed sends it too, and nobody could press Ctrl-C."""
    one = Daemon(Path(tempfile.mkdtemp(prefix="caovan-")), configuration(model))
    argv = [*one.caovand, "--config", str(one.config_path)]
    terminal = Terminal(argv, one.environ, one.folder)
    one.process = terminal.process
    terminal.until_it_says("-> SERVING")
    one.spawned()
    terminal.process.send_signal(signal.SIGHUP)
    terminal.until_it_says("reloaded")
    terminal.close()
    assert terminal.until_ended() == 0
    assert one.tree() == []
    shutil.rmtree(one.folder)


@pytest.mark.long
def test_a_killed_shell_ends_everything_too(model: Path) -> None:
    """The terminal stays open then, without anybody to press Ctrl-C."""
    one = Daemon(Path(tempfile.mkdtemp(prefix="caovan-")), configuration(model))
    command = shlex.join([*one.caovand, "--config", str(one.config_path)])
    terminal = Terminal(["sh", "-c", f"{command}; true"], one.environ, one.folder)
    terminal.until_it_says("-> SERVING")
    pid = one.status()["daemon"]["pid"]
    terminal.process.kill()
    terminal.until_ended()
    until(lambda: not lives(pid), "the daemon's end")
    assert "-> STOPPED" in terminal.text
    shutil.rmtree(one.folder)


@pytest.mark.long
def test_a_key_that_is_missing_for_a_moment_is_waited_for(model: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    secret_file(key, "sesame-4711\n")
    config = configuration(model, watch=RECHECK, server=f'api_key_file = "{key}"')
    with daemon(config) as one:
        pid = one.until_state("SERVING")["engine_pid"]
        key.rename(tmp_path / "aside")
        os.kill(pid, signal.SIGKILL)
        assert "api_key_file" in one.until_state("HOLD")["reason"]
        (tmp_path / "aside").rename(key)
        one.until_state("SERVING")


@pytest.mark.long
def test_a_ledger_that_cannot_be_written_is_told_and_costs_nothing(model: Path) -> None:
    with daemon(configuration(model)) as one:
        one.until_state("SERVING")
        ledger = one.folder / "state/slots/main/engine-processes.json"
        ledger.unlink()
        ledger.mkdir()
        assert one.ctl("restart").returncode == 0
        until(lambda: any("the next one may not find" in text for text in one.events()), "a word")
        assert one.stop() == 0
        assert one.tree() == []


@pytest.mark.long
def test_one_folder_may_serve_for_everything(model: Path) -> None:
    with daemon(configuration(model)) as one:
        one.stop()
        for name in ("STATE_DIRECTORY", "CACHE_DIRECTORY", "LOGS_DIRECTORY"):
            one.environ[name] = str(one.folder / "run")
        one.start()
        one.until_state("SERVING")
