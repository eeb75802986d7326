"""The engine's first program gives up its rights and does nothing else before it becomes the
engine."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from caovand.adapters.confinement import call_filter, launch
from caovand.adapters.confinement.popen import Confinement, popen_arguments
from caovand.adapters.privileges import engine_user
from caovand.adapters.privileges.helper import in_memory

KNOWN = platform.machine() in call_filter.MACHINES


def launched(script: str, confined: Confinement | None, **env: str) -> Any:
    """Print what a script of Python finds in an engine's place."""
    return json.loads(ran([sys.executable, "-S", "-c", f"import json\n{script}"], confined, **env))


def ran(argv: list[str], confined: Confinement | None, **env: str) -> str:
    """The output of a program in an engine's place."""
    with popen_arguments(argv, env, confined) as started:
        done = subprocess.run(**started, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not KNOWN, reason="no system calls are known for this machine")
def test_a_confined_process_has_no_way_to_gain_rights_or_trace() -> None:
    calls = [call_filter.number(name, platform.machine()) for name in ("ptrace", "bpf", "keyctl")]
    found = launched(
        "import ctypes; call = ctypes.CDLL(None, use_errno=True).syscall\n"
        f"errors = [call(n, 0, 0, 0, 0) and ctypes.get_errno() for n in {calls}]\n"
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "print(json.dumps([errors, status['NoNewPrivs'].strip(), status['Seccomp'].strip()]))",
        Confinement((), (), ()),
    )
    assert found == [[1] * 3, "1", "2"]


def test_a_program_is_passed_the_spawner_as_a_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for user in (None, SimpleNamespace(spawner=17)):
        monkeypatch.setattr(engine_user, "current", lambda user=user: user)
        with popen_arguments(["true"], {}, Confinement((), (), ())) as started:
            found.append(json.loads(started["stdin"].read())["keepers"])
    assert found == [[], [17]]


@pytest.mark.skipif(not KNOWN, reason="no system calls are known for this machine")
def test_the_filter_of_a_program_knows_its_keepers() -> None:
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as keeper:
        script = f"import os\ntry: os.sched_setaffinity({keeper.pid}, {{0}})\n"
        script += "except PermissionError: print(json.dumps('refused'))"
        words = [sys.executable, "-S", "-c", f"import json\n{script}"]
        try:
            with popen_arguments(words, {}, Confinement((), (), ())) as started:
                launch = json.loads(started["stdin"].read())
                with open(in_memory(json.dumps({**launch, "keepers": [keeper.pid]})), "rb") as text:
                    done = subprocess.run(
                        **{**started, "stdin": text}, capture_output=True, text=True, check=True
                    )
        finally:
            keeper.kill()
    assert json.loads(done.stdout) == "refused"


@pytest.mark.skipif(os.getuid() != 0, reason="files' modes keep other users from it")
def test_root_changes_nothing_in_proc_but_processes_that_are_not_its_keeper() -> None:
    paths = [
        "/proc/sys/kernel/core_pattern",
        "/proc/sysrq-trigger",
        "/proc/irq/default_smp_affinity",
    ]
    paths = [path for path in paths if os.path.exists(path)]
    keeper = f"/proc/{os.getpid()}/oom_score_adj"
    refused = launched(
        "import os\nrefused = []\n"
        f"for path in {[*paths, keeper, '/proc/self/oom_score_adj']}:\n"
        "    try: os.close(os.open(path, os.O_WRONLY))\n"
        "    except OSError: refused.append(path)\n"
        "print(json.dumps(refused))",
        Confinement((), (), (launch.PROC,)),
    )
    assert refused == [*paths, keeper]


def test_an_engine_gets_its_own_environment_no_input_and_the_usual_signals(tmp_path: Path) -> None:
    script = "import os\nprint(json.dumps([dict(os.environ), os.read(0, 1).decode()]))"
    assert launched(script, None, LD_LIBRARY_PATH=str(tmp_path)) == [
        {"LD_LIBRARY_PATH": str(tmp_path), "LC_CTYPE": "C.UTF-8"}, ""
    ]  # fmt: skip
    done = ran(["grep", "SigIgn", "/proc/self/status"], None, PATH="/usr/bin:/bin")
    ignored = int(done.split()[1], 16)
    assert not ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)


@pytest.mark.skipif(launch.landlock_abi() < launch.MIN_ABI, reason="no Landlock")
def test_what_is_hidden_stays_so_under_any_name_and_what_is_named_in_it_does_not(
    tmp_path: Path,
) -> None:
    for name in ("hidden/open", "hidden/made", "beside"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("hidden/secret", "hidden/open/known", "beside/public"):
        (tmp_path / name).write_text(name)
    (tmp_path / "beside/link").symlink_to(tmp_path / "hidden")
    (tmp_path / "alias").symlink_to(tmp_path / "hidden")
    hidden, readable = str(tmp_path / "alias"), str(tmp_path / "hidden/open")
    paths = ["hidden/secret", "alias/secret", "beside/link/secret", "hidden/open/known"]
    confined = Confinement((hidden,), (readable, "/"), (str(tmp_path / "hidden/made"),))
    found: Mapping[str, bool] = launched(
        f"found = {{}}\nfor one in {[*paths, 'beside/public']}:\n"
        f"    try: found[one] = bool(open('{tmp_path}/' + one).read())\n"
        "    except PermissionError: found[one] = False\n"
        f"open('{tmp_path}/hidden/made/new', 'w')\nprint(json.dumps(found))",
        confined,
    )
    assert [name for name, could in found.items() if could] == [
        "hidden/open/known",
        "beside/public",
    ]


def test_in_a_folder_that_cannot_be_listed_the_way_to_what_is_hidden_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/home of mode 711 with ~/.ssh hidden: the rest of the home stays readable."""
    (tmp_path / "home/user/.ssh").mkdir(parents=True)
    (tmp_path / "home/user/models").mkdir()
    scandir = os.scandir

    def refused(path: str) -> Any:
        if path == str(tmp_path / "home"):
            raise PermissionError
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    hidden = [str(tmp_path / "home/user/.ssh")]
    assert list(launch.except_for(str(tmp_path), hidden)) == [str(tmp_path / "home/user/models")]


def test_siblings_of_what_is_hidden_are_found_once_and_links_are_left_out(tmp_path: Path) -> None:
    for name in ("a/b/secret", "a/c", "d"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "root").symlink_to("/")
    found = set(launch.except_for(str(tmp_path), [str(tmp_path / "a/b/secret")]))
    assert found == {str(tmp_path / "a/c"), str(tmp_path / "d")}
    assert list(launch.except_for(str(tmp_path / "d"), [str(tmp_path / "a")])) == [
        str(tmp_path / "d")
    ]


class Kernel:
    """Mounts nothing, and refuses to mount one path."""

    def __init__(self, refused: str) -> None:
        self.refused = os.fsencode(refused)
        self.mounted: list[tuple[str, int]] = []

    def unshare(self, _flags: int) -> int:
        return 0

    def mount(self, path: bytes, _to: bytes, _kind: None, flags: Any, _data: None) -> int:
        self.mounted.append((os.fsdecode(path), flags.value))
        return -1 if path == self.refused else 0


@pytest.mark.parametrize(
    ("writable", "printed"),
    [(True, "cannot make /proc/sys read-only for the engine: "), (False, "")],
)
def test_a_setting_that_cannot_be_protected_leaves_the_others_protected(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, writable: bool, printed: str
) -> None:
    kernel = Kernel("/proc/sys")
    monkeypatch.setattr(os, "access", lambda *_: writable)
    launch.protect_machine(kernel)
    paths = list(dict.fromkeys(path for path, _ in kernel.mounted))
    assert paths[:4] == ["/", "/proc/sys", "/proc/sysrq-trigger", f"/proc/{os.getppid()}"]
    assert "/proc/meminfo" in paths
    masks_stay = launch.MS_BIND | launch.MS_REC
    assert ("/proc/sysrq-trigger", masks_stay) in kernel.mounted
    read_only = launch.MS_BIND | launch.MS_REMOUNT | launch.MS_RDONLY
    assert {("/proc/sysrq-trigger", read_only), ("/proc/meminfo", read_only)} <= {*kernel.mounted}
    err = capsys.readouterr().err
    assert printed in err if printed else not err
