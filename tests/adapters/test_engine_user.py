"""What a daemon does as the engine's user (programs, signals and calls), and without such a
user."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.privileges import calls, capabilities, engine_user, spawner
from caovand.adapters.system import processes
from tests.adapters.test_spawner import AS_DAEMON, DAEMON, PYTHON, RIGHTS
from tests.daemon_process import ROOT

ENGINE = "nobody"
DAEMON_PROGRAM = """
import json, os, signal, sys
sys.path.insert(0, sys.argv[1])
from caovand.adapters.privileges import engine_user, helper, program, spawner
from caovand.adapters.system import processes
from caovand.adapters.files import emptying, stale_files
engine_user.begin({"CAOVAN_ENGINE_USER": sys.argv[2]})
user, found = engine_user.current(), {"why": engine_user.why_none()}
status = open("/proc/self/status").read().splitlines()
found["rights"] = [line.split()[1] for line in status if line.startswith(("CapP", "CapE", "CapA"))]
if user is not None:
    folder = sys.argv[3] + "/made"
    engine_user.as_engine(stale_files.make_folder, folder)
    found["owner"] = os.stat(folder).st_uid
    nothing = os.open("/dev/null", os.O_RDWR)
    words = ["/bin/sleep", "1000"]
    sleeper = engine_user.ProgramOfUser(user, user.start(words, {"MARK": "1"}, [nothing] * 3))
    def lives():
        environ = []
        while "MARK=1" not in environ:  # until it has executed the program
            environ = engine_user.as_engine(processes.read_environ, sleeper.pid)
        return True
    found["read"] = lives()
    found["read by itself"] = processes.read_environ(sleeper.pid)
    process = processes.read(sleeper.pid)
    found["outputs"] = sorted(processes.outputs(process))
    processes.send(process, signal.SIGTERM)
    found["status"] = sleeper.wait()
    done = user.run(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"], {}, nothing, 60)
    found["ran"] = [done.stdout, done.stderr, done.returncode]
    program.MAX_OUTPUT = 10
    done = user.run(["/bin/sh", "-c", "echo more than that"], {"PATH": "/bin"}, nothing, 60)
    found["kept"] = len(done.stdout)
    try:
        user.run(words, {}, nothing, 0.01)
    except Exception as problem:
        found["late"] = type(problem).__name__
    real = os.pidfd_open
    def too_many(pid):
        found["unwatched"] = pid
        raise OSError(24, "too many open files")
    os.pidfd_open = too_many
    try:
        engine_user.ProgramOfUser(user, user.start(words, {}, [nothing] * 3))
    except OSError as problem:
        os.pidfd_open, pid = real, found.pop("unwatched")
    while user._link._abandoned:
        user._link._reap()
    found["unwatched lives"] = os.path.exists(f"/proc/{pid}")
    caller = user._helper._running[1]
    caller.kill()
    caller.wait()
    found["again"] = engine_user.as_engine(emptying.empty, folder)
    helper.MARGIN_S = 0.1
    user.run(["/bin/kill", "-STOP", str(user._helper._running[1].pid)], {}, nothing, 60)
    found["again after a stop"] = engine_user.as_engine(emptying.empty, folder, limit_s=0)
    try:
        engine_user.as_engine(stale_files.make_folder, "/etc/caovan-test")
    except OSError as problem:
        found["errno"] = problem.errno
    engine_user.end()
    found["ended"] = user._process.returncode
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """caovan's modules where every user may read them, and a folder for all."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        ignore = shutil.ignore_patterns("__pycache__")
        for part in ("adapters", "cli", "core"):
            shutil.copytree(ROOT / "caovand" / part, Path(name) / "caovand" / part, ignore=ignore)
        shutil.copy(ROOT / "caovand/__init__.py", Path(name) / "caovand")
        (Path(name) / "all").mkdir()
        (Path(name) / "all").chmod(0o777)
        yield Path(name)


def daemon(place: Path, *rights: str, user: str = ENGINE) -> dict[str, Any]:
    """What a daemon finds that begins with these rights."""
    words = [PYTHON, "-I", "-S", "-c", DAEMON_PROGRAM, str(place), user, str(place / "all")]
    argv = [*AS_DAEMON, *rights, *words]
    done = subprocess.run(argv, capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


needs_root = pytest.mark.skipif(
    os.getuid() != 0 or not os.path.exists(PYTHON) or not shutil.which("setpriv"),
    reason=f"needs root, {PYTHON} and setpriv",
)


@needs_root
def test_a_daemon_with_the_rights_passes_them_on_and_acts_by_the_spawner(place: Path) -> None:
    found = daemon(place, f"--inh-caps={RIGHTS}", f"--ambient-caps={RIGHTS}")
    assert found == {
        "why": "",
        "rights": ["0000000000000000"] * 3,
        "owner": os.stat(place / "all/made").st_uid,
        "read": True,
        "read by itself": [],
        "outputs": ["/dev/null"],
        "status": -15,
        "ran": ["out\n", "err\n", 3],
        "kept": 10,
        "late": "TimeoutExpired",
        "unwatched lives": False,
        "again": [],
        "again after a stop": [],
        "errno": errno.EACCES,
        "ended": 0,
    }
    assert found["owner"] not in (0, DAEMON)


GONE_PROGRAM = """
import fcntl, functools, json, os, select, signal, sys, termios, threading
sys.path.insert(0, sys.argv[1])
from caovand.adapters.privileges import engine_user
from caovand.adapters.privileges.program import ProgramOfUser
from caovand.adapters.system import processes
answer_s = 0.2 if sys.argv[2] == "stopped" else 60.0
engine_user.SpawnerLink = functools.partial(engine_user.SpawnerLink, answer_s=answer_s)
engine_user.begin({"CAOVAN_ENGINE_USER": sys.argv[3]})
user, nothing = engine_user.current(), os.open("/dev/null", os.O_RDWR)
engine = ProgramOfUser(user, user.start(["/bin/sleep", "1000"], {}, [nothing] * 3))
seen, link, found = processes.read(engine.pid), user._link._link, []
def ask():
    try:
        user.start(["/bin/sleep", "1000"], {}, [nothing] * 3)
    except engine_user.SpawnerEnded as problem:
        found.append(str(problem))
def sent():
    return int.from_bytes(fcntl.ioctl(link, termios.TIOCOUTQ, bytes(4)), "little") > 0
os.kill(user._process.pid, signal.SIGSTOP)
asks = threading.Thread(target=ask)
asks.start()
while sys.argv[2] == "killed" and not sent():
    pass
if sys.argv[2] == "killed":
    os.kill(user._process.pid, signal.SIGKILL)
asks.join()
found.append(bool(select.select([user.ended], [], [], 60)[0]))
found.append(user.why_ended)
if sys.argv[2] == "killed":
    found.append(processes.send(seen, signal.SIGKILL))
    print(engine.pid)
else:
    found.append(engine.wait(60))
    print(engine.pid)
ask()
engine_user.end()
print(json.dumps([*found, user._process.returncode]))
"""


@needs_root
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_spawner_that_answers_no_more_is_given_up(place: Path, how: str) -> None:
    """In the middle of a request. A stopped one goes on, and ends what it started."""
    rights = (f"--inh-caps={RIGHTS}", f"--ambient-caps={RIGHTS}")
    words = [PYTHON, "-I", "-S", "-c", GONE_PROGRAM, str(place), how, ENGINE]
    done = subprocess.run(
        [*AS_DAEMON, *rights, *words], capture_output=True, text=True, cwd="/", check=False
    )
    assert done.returncode == 0, done.stderr
    pid, text = done.stdout.splitlines()
    if how == "killed":
        os.kill(int(pid), signal.SIGKILL)  # it lives: the daemon may not end it
    ended = -signal.SIGKILL
    silent, gone = (
        f"the engine spawner {what}" for what in ("did not answer for 0.2 s", "has exited")
    )
    expected = {
        "stopped": [silent, True, silent, ended, silent, 0],
        "killed": [gone, True, gone, False, gone, ended],
    }
    assert json.loads(text) == expected[how]


def test_one_that_does_not_begin_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mute.py").write_text("import os, signal; signal.pause()")
    monkeypatch.setattr(engine_user, "SPAWNER", tmp_path / "mute.py")
    monkeypatch.setattr(engine_user, "BEGIN_S", 0.01)
    monkeypatch.setattr(capabilities, "read_set", lambda _kind: spawner.SETUID_AND_SETGID)
    with pytest.raises(OSError, match=r"it did not answer for 0.01 s \(status -9\)"):
        engine_user._start_spawner(ENGINE)


@needs_root
@pytest.mark.parametrize(
    ("rights", "user", "why"),
    [
        ((), ENGINE, "the daemon lacks the capabilities CAP_SETUID and CAP_SETGID"),
        ((RIGHTS,), "no-such-user", "the user no-such-user does not exist"),
    ],
)
def test_without_the_rights_or_the_user_the_daemon_has_no_rights_either(
    place: Path, rights: tuple[str, ...], user: str, why: str
) -> None:
    words = [word for one in rights for word in (f"--inh-caps={one}", f"--ambient-caps={one}")]
    assert daemon(place, *words, user=user) == {"why": why, "rights": ["0000000000000000"] * 3}


CAOVANCTL_PROGRAM = """
import sys, types
sys.path.insert(0, sys.argv[1])
def parser(words):
    print(open("/proc/self/status").read())
    raise SystemExit(0)
sys.modules["caovand.cli.parser"] = types.SimpleNamespace(parser=parser)
from caovand.cli import main
main.main(["stop"])
"""


@needs_root
def test_caovanctl_drops_the_rights_of_the_unit_that_runs_it(place: Path) -> None:
    rights = (f"--inh-caps={RIGHTS}", f"--ambient-caps={RIGHTS}")
    words = [PYTHON, "-I", "-S", "-c", CAOVANCTL_PROGRAM, str(place)]
    done = subprocess.run(
        [*AS_DAEMON, *rights, *words], capture_output=True, text=True, cwd="/", check=False
    )
    found = [
        line.split()[1]
        for line in done.stdout.splitlines()
        if line.startswith(("CapInh", "CapPrm", "CapEff", "CapAmb"))
    ]
    assert found == ["0" * 16] * 4, done.stderr


@pytest.mark.parametrize("status", ["", "CapPrm:\t0000000000000000\n", "CapPrm:\tc0\n"])
def test_the_daemon_begins_where_no_rights_can_be_dropped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: str
) -> None:
    def refused(*_: int) -> None:
        raise PermissionError(errno.EPERM, "cannot set capabilities")

    monkeypatch.setattr(capabilities, "STATUS", tmp_path / "status")
    monkeypatch.setattr(engine_user, "_own", engine_user._Own())
    monkeypatch.setattr(os, "getuid", lambda: DAEMON)
    monkeypatch.setattr(spawner, "capabilities", refused)
    (tmp_path / "status").write_text(status)
    engine_user.begin({"CAOVAN_ENGINE_USER": "no-such-user"})
    assert engine_user.why_none() == "the user no-such-user does not exist"


def test_the_rights_that_an_operator_adds_are_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """CAP_DAC_OVERRIDE of a drop-in, which is to read models of others."""
    had: list[tuple[int, ...]] = []
    monkeypatch.setattr(capabilities, "STATUS", tmp_path / "status")
    monkeypatch.setattr(os, "getuid", lambda: DAEMON)
    monkeypatch.setattr(spawner, "capabilities", lambda *sets: had.append(sets))
    for both, expected in ((0x2, []), (0xC2, [(0x2,) * 3])):
        lines = (f"{name}:\t{both:016x}\n" for name in ("CapInh", "CapPrm", "CapEff"))
        (tmp_path / "status").write_text("".join(lines))
        capabilities.drop_overrides()
        assert had == expected


def test_here_functions_are_called_in_this_process() -> None:
    assert engine_user.current() is None
    assert engine_user.as_engine(os.getpid) == os.getpid()


def test_only_caovans_functions_are_called_and_errors_come_back() -> None:
    pids = f"{processes.__name__}:read_outputs"
    assert calls.call(pids, [0]) == {"result": []}
    assert "error" in calls.call("os:getpid", [])
    assert "error" in calls.call("caovand.adapters.system.processes:none", [])
    made = "caovand.adapters.files.stale_files:make_folder"
    assert calls.call(made, ["/proc/none"]) == {"errno": errno.ENOENT}
