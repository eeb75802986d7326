"""Engines of another user than the daemon's, under a real systemd: all ends as it does with one.

The engine is the stand-in. The tests of this file are one story, told in order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import hostile_engine
from tests.hostile_engine import BY_A_THREAD, DENIED, DID, NEEDED
from tests.packaging.conftest import ENGINE_ACCOUNT, Machine, boot, end
from tests.packaging.test_lifecycle import TRIED, add_hostile_places
from tests.packaging.test_upgrade import ENGINE, ENGINES, add_engine
from tests.patience import until

pytestmark = pytest.mark.long

CONFIG = """
[model]
path = "/opt/model"
served_name = "tiny"
max_model_len = 2048
[engine]
confine = {confine}
env = {{ STANDIN = {orders} }}
[page]
listen = "127.0.0.1:9480"
[gateway]
listen = "127.0.0.1:9481"
[watch]
shutdown_timeout_s = 1
hang_s = 5
confirm_s = 2
"""
OURS = ("spawner", "page", "gateway", "calls")
"""The daemon's helpers; the last is of the engines' user."""
WITHOUT_LIMITS = f"nice: {DID}, ioprio: {DID}, attributes: {DID}, limits: {DENIED}"
"""What root can, too, where a container lacks CAP_SYS_RESOURCE."""
ESCAPE = {"escape": "escapee", "ignore_term": True}
PHASES = ("launch", "resolve", "engine", "load", "compile", "capture", "warmup", "http", "SERVING")
SOON_S = 120.0
DROP_INS = "/etc/systemd/system/caovan.service.d"


@pytest.fixture(scope="module")
def machine(
    base: Path, caovan_deb: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machine]:
    """A machine with the package and an engine."""
    one = boot(tmp_path_factory.mktemp("m") / "machine", base, engine=False, unified=True)
    try:
        one.install(caovan_deb)
        one.put(tiny_model, "/opt/model")
        add_engine(one, ENGINE)
        yield one
    finally:
        end(one)


def configure(machine: Machine, orders: dict[str, Any], *, confine: bool = True) -> None:
    """Have an engine with these orders, from the next start on."""
    text = json.dumps(json.dumps(orders))
    machine.write("/etc/caovan.toml", CONFIG.format(orders=text, confine=str(confine).lower()))


def serves(machine: Machine) -> set[int]:
    """The processes of an engine that serves."""
    status = machine.until_state("SERVING", patience_s=SOON_S)
    pids = machine.engine_pids() - {status[name]["pid"] for name in ("page", "gateway")}
    assert {machine.user(pid) for pid in pids} == {ENGINE_ACCOUNT}
    return pids


def living(machine: Machine, pids: set[int]) -> set[int]:
    """Those that are left of these processes."""
    return pids & machine.pids()


@pytest.mark.parametrize("confine", [True, False])
def test_the_engines_user_can_do_none_of_the_ten_things(machine: Machine, confine: bool) -> None:
    if confine:
        make_hostile(machine, f"{ENGINES}/{ENGINE}/bin/python")
    configure(machine, {}, confine=confine)
    machine.must("systemctl", "restart", "caovan")
    serves(machine)
    see_what_it_reached(machine, confine=confine)


def make_hostile(machine: Machine, python: str) -> None:
    """Let the engine of this Python try all it can before it serves."""
    add_hostile_places(machine)
    machine.put(Path(hostile_engine.__file__), "/opt/hostile.py")
    machine.must("mv", python, f"{python}.real")
    targets = f"daemon=$PPID {' '.join(OURS)}"
    attack = f"python3 /opt/hostile.py /opt/daemon {targets} >{TRIED}"
    serve = f'case " $* " in *" serve "*) {attack};; esac'
    machine.write(python, f'#!/bin/sh\n{serve}\nexec {python}.real "$@"\n', 0o755)


def see_what_it_reached(machine: Machine, *, confine: bool = True) -> None:
    """See that it could do nothing but its work, and that root can do all that it tried."""
    found = json.loads(machine.must("cat", TRIED))
    reached = {name: end for name, end in found["tried"].items() if end != DENIED}
    # Of its own user's it may do what Landlock and seccomp leave, but read and write no memory.
    names = ["schedule"] if confine else ["end", "lower the priority of", "schedule"]
    assert reached == {f"{name} the calls": DID for name in names}
    assert {name for name in NEEDED if not found["works"][name]} == set()
    daemon = f"daemon={machine.show('MainPID')}"
    attack = ("python3", "/opt/hostile.py", "/opt/daemon", daemon, *OURS)
    tried = json.loads(machine.must(*attack))["tried"]
    assert {*tried.values()} <= {DID, WITHOUT_LIMITS}
    assert f"{BY_A_THREAD} the daemon" in tried


def test_orphans_that_left_the_session_and_swallow_term_are_ended(machine: Machine) -> None:
    configure(machine, ESCAPE)
    machine.must("systemctl", "restart", "caovan")
    old = serves(machine)
    assert "escapee" in map(machine.comm, old)
    machine.must("kill", "-9", str(machine.status()["engine_pid"]))
    until(lambda: not living(machine, old), "an engine that has exited", SOON_S)
    serves(machine)


def test_a_hang_leaves_an_incident_with_the_stacks_of_another_users_processes(
    machine: Machine,
) -> None:
    fault = {"at": "completion", "count": 3, "do": "hang", "memory": "/var/cache/caovan/hung"}
    configure(machine, {"fault": fault})
    machine.must("systemctl", "restart", "caovan")
    old = serves(machine)
    ask = json.dumps({"model": "tiny", "prompt": "hello there", "max_tokens": 5})
    url = "http://127.0.0.1:8000/v1/completions"
    for _ in range(3):
        machine.run("curl", "-s", "-m", "2", "-d", ask, url)
    until(lambda: not living(machine, old), "the end of an engine that hangs", SOON_S)
    serves(machine)
    incident = json.loads(machine.must("caovanctl", "incidents", "--json"))[-1]
    assert incident["failure"] == "hang"
    folder = "/var/lib/caovan/state/slots/main/incidents"
    stacks = machine.must("sh", "-c", f"cat {folder}/*-hang/stacks.txt")
    assert "VLLM::EngineCor" in stacks
    assert "waits in ?" not in stacks


def reached(status: dict[str, Any]) -> int:
    """How far a start has come, as a place in PHASES; -1 before it begins."""
    at = {status.get("phase"), status.get("state")}
    return max((place for place, phase in enumerate(PHASES) if phase in at), default=-1)


@pytest.mark.parametrize("phase", PHASES)
def test_a_daemon_killed_in_any_phase_leaves_nothing(machine: Machine, phase: str) -> None:
    if phase == PHASES[0]:
        configure(machine, {**ESCAPE, "boot_s": 0.5})
        # What swallows TERM is killed then.
        machine.write(f"{DROP_INS}/soon.conf", "[Service]\nTimeoutStopSec=3\n")
        machine.must("systemctl", "daemon-reload")
        machine.must("systemctl", "restart", "caovan")
    until(lambda: reached(machine.status()) >= PHASES.index(phase), phase, SOON_S)
    main, old = machine.show("MainPID"), machine.pids()
    machine.must("kill", "-9", main)
    until(lambda: machine.show("MainPID") not in ("0", main), "another daemon", SOON_S)
    assert living(machine, old) == set()


def test_without_its_spawner_the_service_ends_and_comes_back(machine: Machine) -> None:
    old, main = serves(machine) | machine.pids(), machine.show("MainPID")
    restarts = int(machine.show("NRestarts"))
    machine.must("pkill", "-9", "-x", "caovan-spawner")
    until(lambda: machine.show("NRestarts") == str(restarts + 1), "a restart", SOON_S)
    assert "the engine spawner has exited" in machine.journal()
    assert machine.show("MainPID") != main
    serves(machine)
    assert living(machine, old) == set()


def test_without_the_rights_engines_run_as_the_daemons_user(machine: Machine) -> None:
    configure(machine, {})
    drop_in = f"{DROP_INS}/alone.conf"
    machine.must("systemctl", "restart", "caovan")
    serves(machine)
    assert f"engines run as the user {ENGINE_ACCOUNT}" in machine.run("caovanctl", "doctor").stdout
    machine.write(drop_in, "[Service]\nAmbientCapabilities=\n")
    machine.must("systemctl", "daemon-reload")
    machine.must("systemctl", "restart", "caovan")
    machine.until_state("SERVING", patience_s=SOON_S)
    assert {machine.user(pid) for pid in machine.pids()} == {"caovan"}
    why = "user (the daemon lacks the capabilities CAP_SETUID and CAP_SETGID)"
    assert why in machine.run("caovanctl", "doctor").stdout
    machine.must("rm", drop_in)
    machine.must("systemctl", "daemon-reload")
    machine.must("systemctl", "restart", "caovan")
    serves(machine)
    machine.must("systemctl", "stop", "caovan")
    assert machine.show("Result") == "success"
    assert machine.pids() == set()
    assert machine.must("ls", "/dev/shm") == ""
