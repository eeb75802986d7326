"""One build for three releases: the package under the real systemd and libraries of each.

The engine is the stand-in, so that this takes seconds; test_lifecycle.py has the real one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon_process import ROOT
from tests.packaging.conftest import BASE_PACKAGES, ENGINE_ACCOUNT, Machine, boot, end, make_base
from tests.packaging.test_engine_user import make_hostile, see_what_it_reached
from tests.patience import until

pytestmark = pytest.mark.long
RELEASES = {"bookworm": "252", "jammy": "249", "noble": "255"}
CONFIG = """
[model]
path = "/opt/model"
max_model_len = 2048
[engine]
python = "/opt/standin.py"
[watch]
shutdown_timeout_s = 1
"""


@pytest.fixture(scope="module", params=RELEASES)
def machine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machine]:
    """A machine of each release, with systemd of the version it ships."""
    options = []
    packages = BASE_PACKAGES
    if request.param == "bookworm":
        packages += ",g++,libnuma1"  # as the other tests have it: made once
    else:
        keys: Path = request.getfixturevalue("ubuntu_keys")
        packages += ",python3-tomli"
        options = ["--components=main,universe", f"--keyring={keys}"]
    base = make_base(request.param, packages, *options)
    one = boot(tmp_path_factory.mktemp("m") / "machine", base, engine=False)
    try:
        version = one.must("systemctl", "--version").split()[1]
        assert version == RELEASES[request.param]
        yield one
    finally:
        end(one)


def test_it_installs_and_says_what_is_missing(machine: Machine, caovan_deb: Path) -> None:
    machine.install(caovan_deb)
    machine.until_state("HOLD", "FAILED")
    assert machine.show("ActiveState") == "active"
    assert "caovanctl engine install" in machine.show("StatusText")
    done = machine.run("systemd-analyze", "verify", "--man=no", "caovan.service")
    # Other units of a release have their own faults.
    assert "caovan" not in done.stdout + done.stderr


def test_it_serves_reloads_and_survives_a_kill(machine: Machine, tiny_model: Path) -> None:
    machine.put(tiny_model, "/opt/model")
    machine.put(ROOT / "tests/standin/engine.py", "/opt/standin.py")
    machine.write("/etc/caovan.toml", CONFIG)
    machine.must("chmod", "755", "/opt/standin.py")
    machine.must("systemctl", "reload", "caovan")
    machine.until_state("SERVING")
    until(lambda: machine.show("StatusText").startswith("SERVING"), "the status line")
    main, engine = int(machine.show("MainPID")), machine.status()["engine_pid"]
    assert "/system.slice/caovan.service/engine-main\n" in machine.groups(engine)
    assert machine.user(engine) == ENGINE_ACCOUNT
    machine.write("/etc/caovan.toml", CONFIG + "nonsense = 1\n")
    assert machine.run("systemctl", "reload", "caovan").returncode != 0
    assert machine.show("ActiveState") == "active"
    machine.write("/etc/caovan.toml", CONFIG)
    machine.must("systemctl", "reload", "caovan")
    assert machine.status()["engine_pid"] == engine
    old = machine.pids()
    machine.must("kill", "-9", str(main))
    until(lambda: machine.show("NRestarts") == "1", "a restart")
    machine.until_state("SERVING")
    assert not old & machine.pids()
    described = json.loads(machine.must("caovanctl", "inventory", "--json"))
    assert described["gpus"] == []


def test_the_engine_reaches_nothing_of_the_daemons(machine: Machine) -> None:
    make_hostile(machine, "/opt/standin.py")
    servers = '[page]\nlisten = "127.0.0.1:9480"\n[gateway]\nlisten = "127.0.0.1:9481"\n'
    machine.write("/etc/caovan.toml", CONFIG + servers)
    machine.must("systemctl", "restart", "caovan")
    machine.until_state("SERVING")
    see_what_it_reached(machine)


def test_purge_leaves_nothing_but_the_accounts(machine: Machine) -> None:
    machine.must("apt-get", "purge", "-y", "caovan")
    # systemd 249 keeps an empty folder of every service it ever ran below /run/systemd.
    left = machine.must(
        "find", "/etc", "/usr", "/var/lib", "/var/cache", "/var/log", "/run", "-xdev",
        "-iname", "*caovan*", "-not", "-path", "/run/systemd/*",
    )  # fmt: skip
    assert left == ""
    assert machine.pids() == set()
