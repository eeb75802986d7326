"""The package from installation to purge under a real systemd, with a real engine.

One machine lives through all of this: the tests of this file are one story, told in order.
"""

from __future__ import annotations

import errno
import json
import platform
import re
import stat
import time
from pathlib import Path

import pytest

from caovand.adapters.confinement import launch
from caovand.adapters.system.short_slice import SLICE_NS
from tests import hostile_engine
from tests.hostile_engine import DENIED, DID, NEEDED
from tests.packaging.conftest import ACCOUNT, ENGINE_ACCOUNT, KEEP, Machine, repacked, version_of
from tests.patience import until

pytestmark = [pytest.mark.long, pytest.mark.engine]
BOOT_S = 600.0  # of an engine on one core that it shares
SHUTDOWN_S = 3
CONFIG = f"""# edited here
[model]
path = "/opt/model"
served_name = "tiny"
max_model_len = 2048
[engine]
python = "/opt/python"
extra_args = ["--kv-cache-memory-bytes", "64M"]
[watch]
shutdown_timeout_s = {SHUTDOWN_S}
"""
KEY = "/etc/caovan/cluster.key"
READ_KEYS = ("read the API key's file", "read cluster.key")
TRIED = "/var/cache/caovan/tried.json"
LENGTHS = tuple(map(int, re.findall(r"\d+", platform.release())[:2])) >= (6, 12)


@pytest.fixture(scope="module")
def serving(machine: Machine) -> Machine:
    """The machine, with an engine that serves."""
    machine.until_state("SERVING", patience_s=BOOT_S)
    return machine


def test_it_installs_with_no_engine_and_no_card_and_says_what_to_do(
    machine: Machine, caovan_deb: Path
) -> None:
    machine.install(caovan_deb)
    assert machine.must("systemctl", "is-active", "caovan").strip() == "active"
    assert machine.must("systemctl", "is-enabled", "caovan").strip() == "enabled"
    machine.until_state("HOLD", "FAILED")
    assert "install an engine with `sudo caovanctl engine install`" in machine.show("StatusText")
    assert machine.run("caovanctl", "status").returncode == 3
    assert machine.show("NRestarts") == "0"


def test_the_daemon_finds_the_packages_nvml_bindings(machine: Machine) -> None:
    script = "from caovand.adapters.gpu import nvml_library; print(nvml_library.pynvml())"
    assert "/usr/lib/caovan/vendor/pynvml.py" in machine.must("python3", "-c", script)


def test_the_unit_is_valid_and_as_closed_as_its_comments_say(machine: Machine) -> None:
    done = machine.run("systemd-analyze", "verify", "--man=no", "caovan.service")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    machine.must("systemd-analyze", "security", "--offline=yes", "--threshold=29", "caovan.service")


def test_the_account_may_use_cards_and_read_no_logs_and_change_no_engine(
    machine: Machine,
) -> None:
    for account in (ACCOUNT, ENGINE_ACCOUNT):
        groups = machine.must("id", "-nG", account).split()
        assert sorted(groups) == sorted({account, ENGINE_ACCOUNT, "video", "render"})
        done = machine.run("runuser", "-u", account, "--", "touch", "/var/lib/caovan/engines/x")
        assert "Permission denied" in done.stderr
    modes = machine.must(
        "stat", "-c", "%n %a %U", "/var/lib/caovan", "/var/lib/caovan/engines",
        "/var/lib/caovan/models",
        "/var/lib/caovan/state", "/var/cache/caovan", "/var/log/caovan", "/run/caovan",
    )  # fmt: skip
    assert modes.splitlines() == [
        "/var/lib/caovan 755 root", "/var/lib/caovan/engines 755 root",
        "/var/lib/caovan/models 755 root",
        "/var/lib/caovan/state 750 caovan", "/var/cache/caovan 770 caovan-engine",
        "/var/log/caovan 750 caovan", "/run/caovan 755 caovan",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("more", "seen"), [("", errno.ENXIO), ("DevicePolicy=closed", errno.EPERM)]
)
def test_the_unit_lets_the_service_open_a_card(machine: Machine, more: str, seen: int) -> None:
    # A node with the driver's number and no driver behind it: ENXIO is "no such card", EPERM
    # would be the unit's doing.
    # /dev of the machine is a mount of its own: everything is done from inside.
    machine.must("sh", "-c", "test -e /dev/card || mknod -m 666 /dev/card c 195 0")
    look = "import os\ntry: os.open('/dev/card', 2)\nexcept OSError as e: print('card', e.errno)\n"
    machine.write("/opt/look.py", look)
    lines_of_unit = f"[Service]\n{more}\nExecStartPre=/usr/bin/python3 /opt/look.py\n"
    machine.write("/etc/systemd/system/caovan.service.d/card.conf", lines_of_unit)
    machine.must("systemctl", "daemon-reload")
    machine.must("systemctl", "restart", "caovan")
    lines = [line for line in machine.journal().splitlines() if line.startswith("card ")]
    machine.must("rm", "/etc/systemd/system/caovan.service.d/card.conf")
    machine.must("systemctl", "daemon-reload")
    assert lines[-1] == f"card {seen}"


def test_a_broken_file_at_start_is_exit_78_and_no_second_attempt(machine: Machine) -> None:
    machine.write("/etc/caovan.toml", "[model]\npaht = 3\n")
    assert machine.run("systemctl", "restart", "caovan").returncode != 0
    assert (machine.show("ExecMainStatus"), machine.show("NRestarts")) == ("78", "0")
    assert machine.show("ActiveState") == "failed"
    assert 'unknown key "paht" in [model]; did you mean "path"?' in machine.journal()


def add_hostile_places(machine: Machine) -> None:
    """Have all that an engine may try its hands at in one folder, and keys."""
    places = {"run": "/run/caovan", "state": "/var/lib/caovan/state", "cache": "/var/cache/caovan",
              "log": "/var/log/caovan", "api.key": KEY, "keys": str(Path(KEY).parent)}  # fmt: skip
    machine.must("mkdir", "-p", "/opt/daemon", places["keys"])
    for name, place in places.items():
        machine.must("ln", "-s", place, f"/opt/daemon/{name}")
    machine.write(KEY, "c" * 64, 0o640)
    machine.must("chgrp", ACCOUNT, KEY)


def add_hostile_code(machine: Machine) -> None:
    """Let the engine try what it may do to its daemon, before it serves."""
    add_hostile_places(machine)
    machine.put(Path(hostile_engine.__file__), "/opt/hostile.py")
    python = (machine.root / "opt/python").read_text().removeprefix("#!/bin/sh\n")
    attack = f"python3 /opt/hostile.py /opt/daemon daemon=$PPID spawner >{TRIED}"
    serve = f'case " $* " in *" serve "*) {attack};; esac'
    machine.write("/opt/python", f"#!/bin/sh\n{serve}\n{python}", 0o755)


def test_with_an_engine_and_a_model_it_serves(machine: Machine) -> None:
    add_hostile_code(machine)
    machine.write("/etc/caovan.toml", CONFIG)
    machine.must("systemctl", "start", "caovan")
    # Ready long before the engine is.
    assert machine.show("ActiveState") == "active"
    status = machine.until_state("SERVING", patience_s=BOOT_S)
    assert machine.show("StatusText").startswith("SERVING tiny on http://127.0.0.1:8000")
    ask = json.dumps({"model": "tiny", "prompt": "hello there", "max_tokens": 5})
    answer = machine.must(
        "curl", "-sf", "-H", "Content-Type: application/json", "-d", ask,
        "http://127.0.0.1:8000/v1/completions",
    )  # fmt: skip
    assert json.loads(answer)["usage"]["completion_tokens"] > 0
    # The engine is in the sub-group, the daemon above it.
    unit = "/system.slice/caovan.service"
    main = int(machine.show("MainPID"))
    assert f"{unit}\n" in machine.groups(main)
    engine = machine.engine_pids()
    assert status["engine_pid"] in engine
    assert len(engine) >= 3
    for pid in engine:
        assert f"{unit}/engine-main\n" in machine.groups(pid), pid
        assert machine.user(pid) == ENGINE_ACCOUNT
        assert capabilities(machine, pid) == {0}
    assert (machine.user(main), capabilities(machine, main)) == (ACCOUNT, {0})
    # Of the two only the daemon has short slices, where the kernel has lengths and shows them.
    if (before := slice_ns(machine, status["engine_pid"])) and LENGTHS:
        assert slice_ns(machine, main) == SLICE_NS != before


def capabilities(machine: Machine, pid: int) -> set[int]:
    """What a process has of capabilities: inheritable, permitted, effective and ambient."""
    lines = machine.must("cat", f"/proc/{pid}/status").splitlines()
    kinds = ("CapInh:", "CapPrm:", "CapEff:", "CapAmb:")
    return {int(line.split()[1], 16) for line in lines if line.startswith(kinds)}


def slice_ns(machine: Machine, pid: int) -> int:
    """The length of a process's slices; 0 where the kernel does not show it."""
    found = re.search(
        r"se\.slice\s*:\s*(\d+)", machine.must("sh", "-c", f"cat /proc/{pid}/sched || :")
    )
    return int(found[1]) if found else 0


def test_the_engine_could_do_nothing_to_the_service_and_all_its_work(serving: Machine) -> None:
    found = json.loads(serving.must("cat", TRIED))
    print(found)
    abi = launch.landlock_abi()
    if abi < launch.MIN_ABI:
        pytest.skip(f"this kernel's Landlock has version {abi}")
    assert {*found["tried"].values()} == {DENIED}
    assert {name for name in NEEDED if not found["works"][name]} == set()
    assert "files, keys and processes" in serving.run("caovanctl", "doctor").stdout


def test_reload_fails_for_a_broken_file_and_changes_nothing(serving: Machine) -> None:
    before = serving.status()["engine_pid"]
    serving.write("/etc/caovan.toml", CONFIG + "[policy]\nmtp = 99\n")
    assert serving.run("systemctl", "reload", "caovan").returncode != 0
    assert "[policy] mtp must be from 0 to 8" in serving.journal()
    assert serving.show("ActiveState") == "active"
    assert serving.status()["engine_pid"] == before
    serving.write("/etc/caovan.toml", CONFIG + "# the same\n")
    serving.must("systemctl", "reload", "caovan")
    assert serving.status()["engine_pid"] == before
    assert serving.show("ActiveState") == "active"


def test_the_page_is_served_under_the_units_restrictions(serving: Machine) -> None:
    engine, url = serving.status()["engine_pid"], "http://127.0.0.1:9480"
    serving.write("/etc/caovan.toml", f'{CONFIG}[page]\nlisten = "127.0.0.1:9480"\n')
    serving.must("systemctl", "reload", "caovan")
    until(lambda: serving.run("curl", "-sf", f"{url}/").returncode == 0, "a page")
    plan = json.loads(serving.must("curl", "-sf", f"{url}/api/plan"))
    assert plan["settings"]["served_model_name"]["value"] == "tiny"
    live = serving.run("curl", "-sN", "-m", "3", f"{url}/api/live").stdout
    assert '"state":"SERVING"' in live
    page = serving.status()["page"]
    assert page["serving"]
    assert "/caovan.service\n" in serving.groups(page["pid"]), "it is beside the engine"
    serving.write("/etc/caovan.toml", CONFIG)
    serving.must("systemctl", "reload", "caovan")
    until(lambda: serving.run("curl", "-sf", f"{url}/").returncode == 7, "no page any more")
    assert serving.status()["engine_pid"] == engine


def test_who_may_do_what(serving: Machine) -> None:
    serving.must("useradd", "stranger")
    serving.must("useradd", "-G", ACCOUNT, "member")

    def exits(user: str, *words: str) -> int:
        return serving.run("runuser", "-u", user, "--", "caovanctl", *words).returncode

    harmless = (("status",), ("version",), ("wait", "--timeout", "5"))
    steering = (("logs",), ("events",), ("plan",), ("reload", "--no-wait"), ("mode",),
                ("mode", "--default", "--defer"))  # fmt: skip
    for words in harmless:
        assert [exits(user, *words) for user in ("root", "member", "stranger")] == [0, 0, 0], words
    for words in steering:
        seen = [exits(user, *words) for user in ("root", "member", "stranger")]
        # `plan` needs no daemon: a stranger gets one computed afresh.
        assert seen == [0, 0, 0 if words == ("plan",) else 5], words
    for words in (("stop",), ("restart",), ("mode", "fast")):
        assert exits("stranger", *words) == 5, words
    daemon = f"daemon={serving.show('MainPID')}"
    attack = ("python3", "/opt/hostile.py", "/opt/daemon", daemon, "spawner")
    for user, may in (("member", {"use control", *READ_KEYS}), ("stranger", set())):
        tried = json.loads(serving.must("runuser", "-u", user, "--", *attack))["tried"]
        reached = {name: end for name, end in tried.items() if end != DENIED}
        assert reached == dict.fromkeys(may, DID), user
    done = serving.run("runuser", "-u", "stranger", "--", "cat", "/var/log/caovan/engine.log")
    assert "Permission denied" in done.stderr
    assert serving.status()["state"] == "SERVING"


@pytest.mark.exhaustive
def test_a_crash_of_the_engine_core_is_healed_by_the_daemon(serving: Machine) -> None:
    main, old = serving.show("MainPID"), serving.status()["engine_pid"]
    serving.must("pkill", "-9", "-f", "^VLLM::EngineCor")
    until(lambda: serving.status()["engine_pid"] != old, "an engine that ended")
    serving.until_state("SERVING", patience_s=BOOT_S)
    assert (serving.show("MainPID"), serving.show("NRestarts")) == (main, "0")


def test_after_kill_9_systemd_brings_the_daemon_back_and_nothing_is_left(serving: Machine) -> None:
    # What the next test needs: a watchdog that bites soon. It counts from the next start on.
    serving.write("/etc/systemd/system/caovan.service.d/t.conf", "[Service]\nWatchdogSec=20\n")
    serving.must("systemctl", "daemon-reload")
    main, old = serving.show("MainPID"), serving.pids()
    serving.must("kill", "-9", main)
    until(lambda: serving.show("NRestarts") == "1", "a restart")
    until(lambda: serving.show("ActiveState") == "active", "a service that is back")
    assert not old & serving.pids()


def test_a_frozen_daemon_is_ended_by_the_watchdog_and_comes_back(serving: Machine) -> None:
    serving.until_state("STARTING", "SERVING")
    main, old = serving.show("MainPID"), serving.pids()
    serving.must("kill", "-STOP", main)
    until(lambda: serving.show("NRestarts") == "2", "a restart by the watchdog")
    until(lambda: serving.show("ActiveState") == "active", "a service that is back")
    assert "Watchdog timeout" in serving.journal()
    assert "Fatal Python error: Aborted" in serving.journal()
    assert not old & serving.pids()
    serving.must("rm", "/etc/systemd/system/caovan.service.d/t.conf")
    serving.must("systemctl", "daemon-reload")


def test_the_daemon_outlives_an_engine_that_hits_the_memory_limit(serving: Machine) -> None:
    serving.must("caovanctl", "stop")
    serving.must("systemctl", "set-property", "--runtime", "caovan", "MemoryMax=700M")
    main, restarts = serving.show("MainPID"), serving.show("NRestarts")
    serving.must("caovanctl", "start", "--no-wait")
    until(lambda: serving.status()["state"] in ("BACKOFF", "HOLD", "FAILED"), "a failure", BOOT_S)
    assert (serving.show("MainPID"), serving.show("NRestarts")) == (main, restarts)
    assert serving.show("ActiveState") == "active"
    kills = serving.must(
        "sh", "-c",
        "cat /sys/fs/cgroup/memory/system.slice/caovan.service/memory.oom_control"
        " || cat /sys/fs/cgroup/system.slice/caovan.service/memory.events",
    )  # fmt: skip
    assert int(re.findall(r"^oom_kill (\d+)$", kills, re.M)[0]) > 0
    serving.must("systemctl", "set-property", "--runtime", "caovan", "MemoryMax=infinity")
    # The setting is a drop-in of systemd's own, which would outlive the package.
    serving.must("rm", "-r", "/run/systemd/system.control/caovan.service.d")
    serving.must("systemctl", "daemon-reload")
    serving.write("/etc/caovan.toml", CONFIG.replace(f"_s = {SHUTDOWN_S}", "_s = 100"))
    serving.must("caovanctl", "reload", "--timeout", str(BOOT_S), timeout_s=BOOT_S)
    assert serving.status()["state"] == "SERVING"


def begin_request(machine: Machine, name: str) -> None:
    """Ask for something that takes many seconds; how it went will be in the journal."""
    ask = json.dumps(
        {"model": "tiny", "prompt": "hi there", "max_tokens": 1900, "ignore_eos": True}
    )
    machine.write("/opt/ask.json", ask)
    machine.must(
        "systemd-run", "--quiet", f"--unit={name}", "curl", "-s", "-o", "/dev/null",
        "-w", "HTTP %{http_code}", "-H", "Content-Type: application/json",
        "-d", "@/opt/ask.json", "http://127.0.0.1:8000/v1/completions",
    )  # fmt: skip
    load = ("curl", "-s", "http://127.0.0.1:8000/load")
    until(lambda: '"server_load":1' in machine.run(*load).stdout, "a request under way")


def test_stop_lets_a_request_finish_beyond_the_units_own_timeout(serving: Machine) -> None:
    serving.write("/etc/systemd/system/caovan.service.d/t.conf", "[Service]\nTimeoutStopSec=6\n")
    serving.must("systemctl", "daemon-reload")
    begin_request(serving, "long-request")
    serving.must("systemctl", "stop", "caovan")
    assert serving.show("Result") == "success"
    seen = serving.must("journalctl", "-u", "long-request", "-o", "cat", "--no-pager")
    assert "HTTP 200" in seen
    serving.must("rm", "/etc/systemd/system/caovan.service.d/t.conf")
    serving.must("systemctl", "daemon-reload")


def test_stop_keeps_its_deadline_with_a_request_running(machine: Machine) -> None:
    machine.write("/etc/caovan.toml", CONFIG + "# the same\n")
    machine.must("systemctl", "start", "caovan")
    machine.until_state("SERVING", patience_s=BOOT_S)
    begin_request(machine, "cut-request")
    begun = time.monotonic()
    machine.must("systemctl", "stop", "caovan")
    assert time.monotonic() - begun < SHUTDOWN_S + 60
    assert (machine.show("Result"), machine.show("ExecMainStatus")) == ("success", "0")
    assert machine.pids() == set()
    assert machine.must("ls", "/dev/shm") == ""


def test_an_upgrade_keeps_the_tokens_of_the_environment_from_the_eyes_of_all(
    machine: Machine, caovan_deb: Path, tmp_path: Path
) -> None:
    file = machine.root / "etc/default/caovan"
    machine.must("chmod", "640", "/etc/default/caovan")
    # As it came: the newer package's replaces it. With a token in it, it stays.
    machine.install(repacked(caovan_deb, tmp_path, "97.0", "# of 97.0\n"), *KEEP)
    assert file.read_text().endswith("# of 97.0\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    file.write_text("HF_TOKEN=secret\n")
    machine.install(repacked(caovan_deb, tmp_path, "98.0", "# of 98.0\n"), *KEEP)
    assert file.read_text() == "HF_TOKEN=secret\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    machine.must("systemctl", "restart", "caovan")
    environ = machine.must("sh", "-c", f"tr '\\0' '\\n' < /proc/{machine.show('MainPID')}/environ")
    assert "HF_TOKEN=secret" in environ.splitlines()
    assert "secret" not in machine.must("systemctl", "show", "caovan")


def test_an_upgrade_keeps_the_edited_file_and_restarts_once(
    machine: Machine, caovan_deb: Path, tmp_path: Path
) -> None:
    machine.must("systemctl", "start", "caovan")
    started = machine.journal().count("Started caovan.service")
    newer = repacked(caovan_deb, tmp_path, "99.0", "# of the newer package\n")
    machine.install(newer, *KEEP)
    assert (machine.root / "etc/caovan.toml").read_text() == CONFIG + "# the same\n"
    assert machine.show("ActiveState") == "active"
    assert machine.journal().count("Started caovan.service") == started + 1
    assert machine.must("dpkg-query", "-W", "-f", "${Version}", "caovan") == "99.0"


def test_a_downgrade_works_too_and_a_disabled_service_stays_disabled(
    machine: Machine, caovan_deb: Path
) -> None:
    machine.must("systemctl", "disable", "--now", "caovan")
    machine.install(caovan_deb, "--allow-downgrades", *KEEP)
    assert machine.must("dpkg-query", "-W", "-f", "${Version}", "caovan") == version_of(caovan_deb)
    assert machine.run("systemctl", "is-enabled", "caovan").stdout.strip() == "disabled"
    assert (machine.root / "etc/caovan.toml").read_text() == CONFIG + "# the same\n"


def test_remove_ends_everything_and_keeps_what_is_the_operators(machine: Machine) -> None:
    machine.must("systemctl", "start", "caovan")
    machine.write("/var/lib/caovan/engines/mine/file", "")
    machine.must("apt-get", "remove", "-y", "caovan")
    assert machine.pids() == set()
    assert machine.run("systemctl", "is-active", "caovan").stdout.strip() == "inactive", (
        machine.journal("-n60")
    )
    for kept in ("etc/caovan.toml", "var/lib/caovan/engines/mine/file", "var/cache/caovan"):
        assert (machine.root / kept).exists(), kept
    assert not (machine.root / "usr/bin/caovand").exists()


def test_purge_leaves_nothing_but_the_accounts_even_of_a_service_that_failed(
    machine: Machine, caovan_deb: Path
) -> None:
    machine.install(caovan_deb, *KEEP)
    machine.must("systemctl", "stop", "caovan")
    machine.write("/etc/caovan.toml", "[model]\npaht = 3\n")
    assert machine.run("systemctl", "start", "caovan").returncode != 0
    assert machine.show("ActiveState") == "failed"
    machine.must("rm", "-rf", "/etc/systemd/system/caovan.service.d")
    machine.must("apt-get", "purge", "-y", "caovan")
    # systemd 249 keeps an empty folder of every service it ever ran below /run/systemd.
    left = machine.must(
        "find", "/etc", "/usr", "/lib/systemd", "/var/lib", "/var/cache", "/var/log", "/run",
        "-xdev", "-iname", "*caovan*", "-not", "-path", "/run/systemd/*",
    )  # fmt: skip
    assert left == ""
    for account in (ACCOUNT, ENGINE_ACCOUNT):
        assert machine.must("id", "-un", account).strip() == account
    assert machine.must("systemctl", "list-units", "--all", "--no-legend", "caovan*") == ""


def test_on_cgroup_v2_the_engine_is_in_the_sub_group_too(
    unified_machine: Machine, caovan_deb: Path
) -> None:
    unified_machine.install(caovan_deb)
    unified_machine.write("/etc/caovan.toml", CONFIG)
    unified_machine.must("systemctl", "reload", "caovan")
    pid = until(lambda: unified_machine.status().get("engine_pid"), "an engine", BOOT_S)
    assert pid is not None
    unit = "0::/system.slice/caovan.service"
    assert unified_machine.groups(pid).splitlines()[-1] == f"{unit}/engine-main"
    main = int(unified_machine.show("MainPID"))
    assert unified_machine.groups(main).splitlines()[-1] == unit
    unified_machine.must("systemctl", "stop", "caovan")
    assert unified_machine.pids() == set()
