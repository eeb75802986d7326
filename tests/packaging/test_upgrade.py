"""The package of before becomes this one, as an administrator does it, and nothing is lost.

Before is the last commit without slots: its state was in STATE itself, its engine in the cgroup
`engine`. The engine is the stand-in, which starts only with the degraded plan: an upgrade that
forgets the plan fails again. The tests of this file are one story, told in order.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from caovand.preparation import memories
from tests.daemon_process import ROOT
from tests.packaging.conftest import ACCOUNT, ENGINE_ACCOUNT, KEEP, Machine, boot, built, end
from tests.patience import until
from tests.scenarios.test_supervision import CONTEXT_TOO_LONG

pytestmark = pytest.mark.long

BEFORE = "524058a2e44a50c0c55df3aba86a747fa0f71bf9"
FITS = "1024"
SOON_S = 120.0
ORDERS = {"die_at": "kv", "at": {"kv": CONTEXT_TOO_LONG}, "unless": FITS}
CONFIG = f"""# edited here
[model]
path = "/opt/model"
served_name = "tiny"
max_model_len = 2048
[engine]
env = {{ STANDIN = {json.dumps(json.dumps(ORDERS))} }}
[watch]
shutdown_timeout_s = 1
stable_after_s = 1
"""
STATE, ENGINES = "/var/lib/caovan/state", "/var/lib/caovan/engines"
ENGINE, OTHER_ENGINE = "vllm-0.32.0-cpu", "vllm-0.31.0-cpu"


@pytest.fixture(scope="module")
def before_deb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The daemon's package of the commit before."""
    git = ["git", "-C", str(ROOT)]
    seen = subprocess.run(
        [*git, "cat-file", "-e", f"{BEFORE}^{{commit}}"], capture_output=True, check=False
    )
    if seen.returncode:
        pytest.skip(f"needs commit {BEFORE[:7]}, which the git history here lacks")
    source = tmp_path_factory.mktemp("before")
    archive = subprocess.run([*git, "archive", BEFORE], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", source], input=archive, check=True)
    subprocess.run(["git", "init", "-q", source], check=True)  # what it packs is what git lists
    (source / ".caovan").symlink_to(ROOT / ".caovan")  # what was fetched already
    (source / "csrc/find-nvcc").write_text("#!/bin/sh\nexit 1\n")  # no kernels: they take long
    return next(built(source, tmp_path_factory.mktemp("packages")).glob("caovan_*_all.deb"))


@pytest.fixture(scope="module")
def machine(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine for the whole story."""
    one = boot(tmp_path_factory.mktemp("m") / "machine", base, engine=False)
    try:
        yield one
    finally:
        end(one)


@dataclass(frozen=True)
class Seen:
    """What an administrator sees of all that an upgrade has to keep."""

    mode: tuple[str, str]
    rungs: list[str]
    degraded_since: float
    incidents: list[dict[str, Any]]
    engines: dict[str, Any]
    config: str


def see(machine: Machine) -> Seen:
    """All of it, by the installed caovanctl."""
    status = machine.status()
    return Seen(
        mode=(status["mode"], status["mode_origin"]),
        rungs=status["rungs"],
        degraded_since=status["degraded"]["since"],
        incidents=json.loads(machine.must("caovanctl", "incidents", "--json")),
        engines=json.loads(machine.must("caovanctl", "engine", "list", "--json")),
        config=(machine.root / "etc/caovan.toml").read_text(),
    )


def told_before(now: Any, before: Any) -> Any:
    """What is told now of what was told before: newer caovanctls tell more."""
    if isinstance(before, dict):
        return {key: told_before(now[key], value) for key, value in before.items()}
    if isinstance(before, list) and len(before) == len(now):
        return [told_before(one, was) for one, was in zip(now, before, strict=True)]
    return now


def add_engine(machine: Machine, name: str) -> None:
    """An installed engine, as `caovanctl engine install` leaves it."""
    made = {
        "version": "0.32.0", "build": "cpu", "python": "3.11.7", "torch": "2.13.0+cpu",
        "plugin": None, "plugin_sha256": None, "lock_sha256": "0" * 64,
        "made_at": "2026-11-20T08:53:01Z",
    }  # fmt: skip
    standin = (ROOT / "tests/standin/engine.py").read_text()
    machine.write(f"{ENGINES}/{name}/bin/python", standin, 0o755)
    machine.write(f"{ENGINES}/{name}/caovan-engine.json", json.dumps(made))
    machine.must("caovanctl", "engine", "use", name)


def serves(machine: Machine) -> set[int]:
    """See that it serves; the processes of daemon and engine."""
    machine.until_state("SERVING", patience_s=SOON_S)
    ask = json.dumps({"model": "tiny", "prompt": "hello there", "max_tokens": 5})
    url = "http://127.0.0.1:8000/v1/completions"
    answer = machine.must("curl", "-sf", "-d", ask, url)
    assert json.loads(answer)["usage"]["completion_tokens"] == 5
    assert machine.show("ActiveState") == "active"
    assert sorted(map(machine.comm, machine.engine_pids())) == ["VLLM::EngineCor", "python3"]
    return machine.pids()


def owners(machine: Machine) -> set[str]:
    """The users that the engine's processes and its files in the cache belong to."""
    files = machine.must("find", "/var/cache/caovan/", "-mindepth", "2", "-printf", "%u\n").split()
    return {*files, *map(machine.user, machine.engine_pids())}


@pytest.fixture(scope="module")
def before(machine: Machine, before_deb: Path, tiny_model: Path) -> Seen:
    """The machine with the package of before, which has been through something."""
    machine.install(before_deb)
    machine.put(tiny_model, "/opt/model")
    machine.must("groupadd", "models")
    machine.must("gpasswd", "-a", ACCOUNT, "models")
    machine.must("chgrp", "-R", "models", "/opt/model")
    machine.must("chmod", "-R", "o-rwx", "/opt/model")
    machine.must("systemctl", "restart", "caovan")  # a process keeps the groups it began with
    add_engine(machine, OTHER_ENGINE)
    add_engine(machine, ENGINE)
    machine.run("caovanctl", "mode", "fast")  # exit status 3: there is no model to serve yet
    machine.write("/etc/caovan.toml", CONFIG)
    machine.must("systemctl", "reload", "caovan")
    machine.until_state("SERVING", patience_s=SOON_S)
    kept = machine.root / f".{STATE}" / memories.DEGRADED_PLAN
    until(kept.exists, "a degraded plan that served stably", SOON_S)
    seen = see(machine)
    assert seen.mode == ("fast", "caovanctl mode")
    assert seen.rungs == [f"context {FITS}"]
    assert seen.incidents[-1]["failure"] == "kv-cache-short"
    assert seen.engines["current"] == ENGINE
    return seen


def test_an_upgrade_keeps_all_of_it_and_serves_again(
    machine: Machine, before: Seen, caovan_deb: Path
) -> None:
    old = serves(machine)
    assert owners(machine) == {ACCOUNT}
    machine.install(caovan_deb, *KEEP)
    assert not old & serves(machine)
    assert owners(machine) == {ENGINE_ACCOUNT}
    seen = see(machine)
    assert replace(seen, engines=told_before(seen.engines, before.engines)) == before
    engine = machine.status()["engine_pid"]
    assert "/system.slice/caovan.service/engine-main\n" in machine.groups(engine)
    # The new caovanctl asked the old daemon to let requests finish; systemd had nothing to kill.
    assert "STOPPING -> STOPPED: stopped" in machine.journal()
    assert "caovan.service: Deactivated successfully." in machine.journal()


def test_the_package_of_before_serves_again_and_what_it_wrote_counts_after_it(
    machine: Machine, before: Seen, before_deb: Path, caovan_deb: Path
) -> None:
    machine.install(before_deb, *KEEP)
    serves(machine)
    assert owners(machine) == {ACCOUNT}
    # It knows nothing of slots: it learned the plan anew, from an incident of its own.
    machine.must("caovanctl", "mode", "stable")
    machine.install(caovan_deb, *KEEP)
    serves(machine)
    assert owners(machine) == {ENGINE_ACCOUNT}
    seen = see(machine)
    assert seen.mode == ("stable", "caovanctl mode")
    assert [row["failure"] for row in seen.incidents] == [
        *(row["failure"] for row in before.incidents), "kv-cache-short",
    ]  # fmt: skip
    assert told_before(seen.engines, before.engines) == before.engines
    assert seen.config == before.config


def test_remove_ends_everything_and_keeps_what_is_the_operators(machine: Machine) -> None:
    machine.must("apt-get", "remove", "-y", "caovan")
    assert machine.pids() == set()
    assert machine.run("systemctl", "is-active", "caovan").stdout.strip() == "inactive"
    for kept in (f"{STATE}/slots/main/incidents", f"{ENGINES}/{ENGINE}", "/etc/caovan.toml"):
        assert (machine.root / f".{kept}").exists(), kept
