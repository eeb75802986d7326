"""The engine's processes: found however they hide, all ended, and no other process ever touched."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import math
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from caovand.adapters import child
from caovand.adapters.child import Child, Engines, Launch, end_orphans, orphans, sweeper
from caovand.adapters.engine.pump import LogSinks, Ring, RotatedFile
from caovand.adapters.system import processes
from caovand.adapters.system.processes import Process
from caovand.core.facts.ledger import MARK, Marks
from tests.daemon_process import ROOT, lives
from tests.patience import LIMIT_S, eventually, soon, turns

TREE = str(Path(__file__).with_name("process_tree.py"))
KINDS = ["plain", "renamed", "deaf", "setsid", "double-fork", "daemonized"]
SYS_EXIT = {"x86_64": 60, "aarch64": 93}.get(platform.machine())


@pytest.fixture
def subreaper() -> Iterator[None]:
    """Adopt orphans as the daemon does; reap what is left of them."""
    processes.become_subreaper()
    yield
    ctypes.CDLL(None).prctl(processes.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


@pytest.fixture
def innocent() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the same user in a session of its own that has nothing to do with us."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


class Engine:
    """Options of a Child, and the lines it printed."""

    def __init__(self, folder: Path) -> None:
        self.ledger = folder / "engine.json"
        self.ring = Ring(1000)
        self.file = RotatedFile(folder / "engine.log")
        self.cgroup: Path | None = None
        self.engines = Engines()
        self.sessions: set[int] = set()
        self.seen: list[Process] = []

    def start(self, *argv: str, env: dict[str, str] | None = None) -> Child:
        launch = Launch(argv=argv, env=dict(os.environ, **(env or {})), cgroup=self.cgroup)
        sinks = LogSinks(self.ring, self.file, lambda lines: None)
        started = Child(launch, sinks, self.ledger, self.engines)
        self.sessions.add(started.pid)
        return started

    def tree(self, *kinds: str) -> Child:
        return self.start(sys.executable, "-S", TREE, *kinds)

    @property
    def lines(self) -> list[str]:
        return self.ring.since(0, 1 << 30)[0]

    async def pids(self, count: int) -> list[int]:
        """The pids that `count` processes printed."""
        await soon(lambda: len(self.lines) >= count)
        pids = [int(line) for line in self.lines]
        self.seen = [seen for seen in map(processes.read, pids) if seen is not None]
        return pids


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path)
    yield engine
    strays = [p for p in processes.all_processes() if p.session in engine.sessions]
    for process in [*strays, *engine.seen]:  # those of a test that failed
        processes.send(process, signal.SIGKILL)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


# -- ending ---


@pytest.mark.usefixtures("subreaper")
@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_of_descendant_outlives_the_end(engine: Engine, kind: str) -> None:
    async def test() -> None:
        started = engine.tree(kind)
        pids = await engine.pids(2)
        assert all(map(lives, pids))
        assert await started.end(5.0) == ()
        assert not any(map(lives, pids))
        assert not engine.ledger.exists()

    run(test)


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup of version 2 that we may use."""
    roots = [
        root
        for root in map(Path, ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"))
        if os.access(root / "cgroup.procs", os.W_OK) and (root / "cgroup.controllers").exists()
    ]
    if not roots:
        pytest.skip("needs a cgroup of version 2 that may be written")
    group = roots[0] / f"caovan-test-{os.getpid()}"
    group.mkdir()
    yield group
    processes.kill_group(group)
    eventually(lambda: not processes.is_populated(group))
    group.rmdir()


def hoppers(engine: Child) -> list[Process]:
    """Those that live and, since we adopt them, those that have died."""
    return [process for process in processes.all_processes() if process.name == f"hop{engine.pid}"]


HOPS = ["hopper0.001", "hopper0.0001", "hopper0.02", "hopper0"]


@pytest.mark.usefixtures("subreaper")
@pytest.mark.parametrize("kind", HOPS)
def test_a_process_that_hops_from_pid_to_pid_does_not_outlive_the_end(
    engine: Engine, kind: str
) -> None:
    async def test() -> None:
        started = engine.tree("plain", kind)
        await engine.pids(3)
        assert await started.end(5.0) == ()
        assert hoppers(started) == []

    run(test)


@pytest.mark.parametrize("kind", HOPS)
def test_a_cgroup_ends_a_process_that_hops_though_nobody_adopts_it(
    engine: Engine, cgroup: Path, kind: str
) -> None:
    engine.cgroup = cgroup

    async def test() -> None:
        started = engine.tree("plain", kind)
        await engine.pids(3)
        assert await started.end(5.0) == ()
        assert not processes.is_populated(cgroup)
        assert [process for process in hoppers(started) if not process.zombie] == []

    run(test)


@pytest.mark.usefixtures("subreaper")
def test_descendants_are_ended_when_the_first_process_is_dead_already(engine: Engine) -> None:
    async def test() -> None:
        started = engine.tree(*KINDS)
        pids = await engine.pids(1 + len(KINDS))
        os.kill(started.pid, signal.SIGKILL)
        assert await started.ended() == -signal.SIGKILL
        await soon(lambda: {p.pid for p in started.refresh()} == set(pids) - {started.pid})
        assert await started.end(5.0) == ()
        assert not any(map(lives, pids))

    run(test)


@pytest.mark.usefixtures("subreaper")
def test_an_end_leaves_strangers_alone(engine: Engine, innocent: subprocess.Popen[bytes]) -> None:
    """Those of our own session, and those that are older than the engine."""

    async def test() -> None:
        older = innocent  # a child of ours in another session, as one adopted would be
        seen = processes.read(older.pid)
        ticks = os.sysconf("SC_CLK_TCK")
        await soon(
            lambda: seen and time.clock_gettime(time.CLOCK_BOOTTIME) * ticks > seen.start + 2
        )
        colleague = subprocess.Popen(["sleep", "600"])
        started = engine.tree("plain")
        await engine.pids(2)
        try:
            assert await started.end(5.0) == ()
            assert older.poll() is None
            assert colleague.poll() is None
        finally:
            colleague.kill()
            colleague.wait()

    run(test)


def test_term_comes_first_and_is_enough_for_the_willing(engine: Engine) -> None:
    async def test() -> None:
        script = 'trap "echo bye; exit 7" TERM; echo hello; while :; do sleep 0.01; done'
        started = engine.start("sh", "-c", script)
        await soon(lambda: engine.lines)
        assert await started.end(20.0) == ()
        assert started.status == 7
        assert engine.lines == ["hello", "bye"]

    run(test)


def test_kill_comes_when_the_grace_is_over(engine: Engine) -> None:
    async def test() -> None:
        started = engine.tree("deaf-first")
        await engine.pids(1)
        assert await started.end(0.1) == ()
        assert started.status == -signal.SIGKILL

    run(test)


def test_a_second_stop_cuts_the_grace_short(engine: Engine) -> None:
    async def test() -> None:
        started = engine.tree("deaf-first")
        await engine.pids(1)
        ending = asyncio.ensure_future(started.end(3600.0))
        await turns()
        started.hurry()
        assert await ending == ()
        assert started.status == -signal.SIGKILL

    run(test)


def finding(look: Callable[[], tuple[Process, ...]]) -> Callable[[], Any]:
    async def find() -> tuple[Process, ...]:
        return look()

    return find


def sweep(*looks: tuple[Process, ...], limit_s: float = 60.0) -> tuple[Process, ...]:
    """What is left of what was seen at each look; nothing at all later ones."""
    seen = iter(looks)
    return asyncio.run(sweeper.sweep(finding(lambda: next(seen, ())), limit_s))


def test_one_look_that_finds_nothing_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(processes, "send", lambda process, number: killed.append(process.pid))
    first, second = (Process(pid, 1, 1, 1, 0, "hops") for pid in (1 << 23, 1 << 24))
    dead = replace(first, zombie=True)
    assert sweep((first,), (), (), (second,), (dead,), (), (second,)) == ()
    assert killed == [first.pid, second.pid, second.pid]


def test_what_a_cgroup_says_it_holds_is_waited_for_and_named() -> None:
    kills: list[bool] = []
    left = asyncio.run(sweeper.sweep(finding(tuple), 0.1, lambda: kills.append(True), lambda: True))
    assert left == (sweeper.UNSEEN,)
    assert kills


def test_what_may_not_be_signalled_is_killed_by_its_cgroup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as another user's processes without the spawner, which may signal them."""
    monkeypatch.setattr(processes, "send", lambda process, number: False)
    lives = [Process(1 << 23, 1, 1, 1, 0, "VLLM::Worker")]
    assert asyncio.run(sweeper.sweep(finding(lambda: tuple(lives)), 60.0, lives.clear)) == ()


def test_a_command_line_that_cannot_be_read_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That of a process whose memory is locked: the read hangs with it."""
    hangs, killed = threading.Event(), list[int]()
    monkeypatch.setattr(sweeper, "COMMAND_LINE_S", 0.05)
    monkeypatch.setattr(processes, "is_resource_tracker", lambda process: hangs.wait(LIMIT_S))
    monkeypatch.setattr(processes, "send", lambda process, number: killed.append(process.pid))
    ticks: list[int] = []

    async def test() -> None:
        ticking = asyncio.ensure_future(soon(lambda: ticks.append(1), math.inf))
        looks = iter([(Process(1 << 23, 1, 1, 1, 0, "VLLM::Worker"),)])
        assert await sweeper.sweep(finding(lambda: next(looks, ())), 60.0) == ()
        ticking.cancel()
        hangs.set()

    run(test)
    assert killed == [1 << 23]
    assert len(ticks) > 5


def test_nothing_that_hangs_with_a_process_is_read_on_the_loop() -> None:
    """Reading a command line, an environment or maps takes the lock of the process's memory."""
    found = {
        path.name
        for path in (ROOT / "caovand").rglob("*.py")
        if re.search(r"""[/"'](cmdline|environ|maps|smaps|mem|stack)["']""", path.read_text())
    }
    # Each of these is asked in threads: sweep's, StaleFileCleaner', Recorder's, caovanctl's own.
    assert found <= {"processes.py", "stale_files.py", "evidence.py", "places.py"}


def test_what_outlives_kill_is_named(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caovand.adapters.child.child.KILL_S", 0.05)
    stuck = Process(7, 1, 1, 1, 0, "VLLM::EngineCore")

    async def test() -> None:
        left = await sweeper.sweep(finding(lambda: (stuck,)), 0.05)
        assert child.for_people(left) == "VLLM::EngineCore (pid 7)"

    monkeypatch.setattr(processes, "send", lambda process, number: None)
    run(test)


SEMAPHORE = """
import multiprocessing, signal
lock = multiprocessing.get_context("spawn").Lock()
print(lock._semlock.name, flush=True)
signal.pause()
"""
STAYS = """# as multiprocessing.resource_tracker would
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
signal.pause()
"""


def test_the_resource_tracker_gets_to_remove_what_killed_processes_shared(engine: Engine) -> None:
    async def test() -> None:
        started = engine.start(sys.executable, "-c", SEMAPHORE)
        await soon(lambda: engine.lines)
        name = Path("/dev/shm/sem." + engine.lines[0].removeprefix("/"))
        assert name.exists()
        os.kill(started.pid, signal.SIGKILL)
        assert await started.end(0) == ()
        assert not name.exists()

    run(test)


def test_a_resource_tracker_that_stays_is_killed_too(engine: Engine) -> None:
    async def test() -> None:
        started = engine.start(sys.executable, "-S", "-c", STAYS)
        await soon(lambda: engine.lines)
        assert await started.end(0) == ()
        assert started.status == -signal.SIGKILL

    run(test)


# -- two engines ---


@pytest.fixture
def other(tmp_path: Path, engine: Engine) -> Iterator[Engine]:
    """Another engine of the same daemon."""
    (tmp_path / "other").mkdir()
    other = Engine(tmp_path / "other")
    other.engines = engine.engines
    yield other
    for process in other.seen:
        processes.send(process, signal.SIGKILL)


@pytest.mark.usefixtures("subreaper")
@pytest.mark.parametrize("first_process", ["lives", "was killed"])
@pytest.mark.parametrize("seen", [True, False], ids=["seen before", "never seen"])
def test_an_end_leaves_the_processes_of_another_engine_alone(
    engine: Engine, other: Engine, seen: bool, first_process: str
) -> None:
    """The orphans of either, too, though all of them came to us from sessions of their own."""

    async def test() -> None:
        one, two = engine.tree(*KINDS), other.tree(*KINDS)
        first, second = await engine.pids(1 + len(KINDS)), await other.pids(1 + len(KINDS))
        if seen:
            one.refresh(), two.refresh()
        if first_process == "was killed":
            os.kill(one.pid, signal.SIGKILL)
            os.kill(two.pid, signal.SIGKILL)
            await one.ended(), await two.ended()
            second.remove(two.pid)
        await soon(lambda: {p.pid for p in two.refresh()} == set(second))
        assert await one.end(5.0) == ()
        assert not any(map(lives, first))
        assert all(map(lives, second))
        assert {p.pid for p in two.refresh()} == set(second)
        assert await two.end(5.0) == ()
        assert not any(map(lives, second))

    run(test)


@pytest.mark.usefixtures("subreaper")
def test_an_orphan_that_may_be_of_two_engines_is_named_and_ended_with_the_last(
    engine: Engine, other: Engine
) -> None:
    async def test() -> None:
        one, two = engine.start("sleep", "600"), other.tree("silent")
        pids = await other.pids(2)
        (hidden,) = set(pids) - {two.pid}
        await soon(lambda: os.readlink(f"/proc/{hidden}/fd/2") == os.devnull)
        assert await two.end(5.0) == ()
        assert [process.pid for process in two.unknown] == [hidden]
        assert lives(hidden)
        assert await one.end(5.0) == ()
        assert not lives(hidden)

    run(test)


@pytest.mark.usefixtures("subreaper")
def test_two_engines_that_end_at_once_leave_nothing(engine: Engine, other: Engine) -> None:
    async def test() -> None:
        one, two = engine.tree("silent", "daemonized"), other.tree("silent", "setsid")
        pids = [*await engine.pids(3), *await other.pids(3)]
        assert await asyncio.gather(one.end(5.0), two.end(5.0)) == [(), ()]
        assert not any(map(lives, pids))

    run(test)


@pytest.mark.usefixtures("subreaper")
def test_an_engine_that_starts_later_is_no_owner_of_what_was_there_before(
    engine: Engine, other: Engine
) -> None:
    async def test() -> None:
        one = engine.tree("silent")
        pids = await engine.pids(2)
        ticks, born = os.sysconf("SC_CLK_TCK"), max(p.start for p in engine.seen)
        await soon(lambda: time.clock_gettime(time.CLOCK_BOOTTIME) * ticks > born + 2)
        two = other.start("sleep", "600")
        assert await one.end(5.0) == ()
        assert (one.unknown, any(map(lives, pids)), lives(two.pid)) == ((), False, True)
        assert await two.end(5.0) == ()

    run(test)


def test_in_cgroups_an_end_leaves_another_engines_processes_alone(
    engine: Engine, other: Engine, cgroup: Path
) -> None:
    """Whether anybody adopts them or not, and whatever they write to."""
    engine.cgroup, other.cgroup = cgroup / "engine-a", cgroup / "engine-b"
    engine.cgroup.mkdir()
    other.cgroup.mkdir()

    async def test() -> None:
        one, two = engine.tree("silent", "daemonized"), other.tree("silent", "daemonized")
        first, second = await engine.pids(3), await other.pids(3)
        assert await one.end(5.0) == ()
        assert not any(map(lives, first))
        await soon(lambda: {p.pid for p in two.refresh()} == set(second))
        assert await two.end(5.0) == ()
        assert (one.unknown, two.unknown) == ((), ())
        assert not any(map(lives, second))

    run(test)
    engine.cgroup.rmdir()
    other.cgroup.rmdir()


def test_what_was_left_is_found_in_a_cgroup_without_a_ledger(
    engine: Engine, cgroup: Path, tmp_path: Path
) -> None:
    """As that of a version without slots, whose daemon could not write one."""
    engine.cgroup = cgroup

    async def test() -> None:
        started = engine.tree("daemonized", "hopper0.001")
        pids = await engine.pids(3)
        found, left = await end_orphans(tmp_path / "none", groups=[cgroup])
        assert {process.pid for process in found} >= set(pids[:2]) & {started.pid}
        assert left == ()
        assert not processes.is_populated(cgroup)
        await started.end(0)

    run(test)


def test_the_ledger_of_one_engine_never_names_processes_of_a_living_one(
    engine: Engine, tmp_path: Path
) -> None:
    """A number of a session may come again, to an engine whose first process is dead."""

    async def test() -> None:
        started = engine.tree("plain")
        (child,) = set(await engine.pids(2)) - {started.pid}
        first = processes.read(started.pid)
        assert first is not None
        os.kill(started.pid, signal.SIGKILL)
        await started.ended()
        ledger = write_ledger(tmp_path / "l", replace(first, start=first.start - 500))
        assert [process.pid for process in orphans(ledger)] == [child]
        assert orphans(ledger, engines=engine.engines) == ()
        await started.end(0)

    run(test)


def test_the_group_of_a_version_without_slots_is_next_to_the_slots(tmp_path: Path) -> None:
    assert processes.former_cgroup(tmp_path / "engine-main") is None
    (tmp_path / "engine").mkdir()
    assert processes.former_cgroup(tmp_path / "engine-main") == tmp_path / "engine"


# -- starting ---


def test_the_engine_has_a_session_of_its_own_no_input_and_our_environment(engine: Engine) -> None:
    async def test() -> None:
        script = 'cat; pwd; echo "$COLOUR"; echo "to stderr" >&2; cut -d" " -f6 /proc/$$/stat'
        started = engine.start("sh", "-c", script, env={"COLOUR": "blue"})
        assert await started.ended() == 0
        await started.end(1.0)
        assert engine.lines == ["/", "blue", "to stderr", str(started.pid)]

    run(test)


def test_the_engine_is_told_to_end_when_the_daemon_dies(engine: Engine) -> None:
    script = (
        "import ctypes; number = ctypes.c_int();"
        "ctypes.CDLL(None).prctl(2, ctypes.byref(number)); print(number.value)"
    )

    async def test() -> None:
        started = engine.start(sys.executable, "-S", "-c", script)
        await started.ended()
        await started.end(1.0)
        assert engine.lines == [str(int(signal.SIGTERM))]

    run(test)


def test_a_command_that_does_not_exist_ends_at_once_and_says_so(engine: Engine) -> None:
    async def test() -> None:
        started = engine.start("/nowhere/python", "-m", "vllm")
        assert await started.ended() == 127
        await started.end(1.0)
        assert "/nowhere/python" in engine.lines[0]

    run(test)


def test_a_command_too_long_for_the_kernel_ends_at_once_and_says_so(engine: Engine) -> None:
    async def test() -> None:
        started = engine.start("sh", "x" * (1 << 21))
        assert await started.ended() == 126
        await started.end(1.0)
        assert engine.lines == ["cannot execute sh: Argument list too long"]

    run(test)


def test_many_lives_leave_no_descriptor_behind(engine: Engine) -> None:
    async def test() -> None:
        for n in range(5):
            started = engine.start("echo", str(n))
            await started.ended()
            await started.end(1.0)

    run(test)
    count = len(os.listdir("/proc/self/fd"))
    run(test)
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= count)


def test_the_engine_joins_its_cgroup_before_anything_else(engine: Engine, tmp_path: Path) -> None:
    engine.cgroup = tmp_path / "engine"
    engine.cgroup.mkdir()
    procs = engine.cgroup / "cgroup.procs"
    procs.touch()

    async def test() -> None:
        started = engine.start("cat", str(procs))
        await started.ended()
        await started.end(1.0)
        assert engine.lines == [str(started.pid)]

    run(test)


def test_a_client_whose_parents_proc_hides_is_not_the_engines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With `hidepid`, a shell's parent is sshd of root, whom only root sees."""
    shown = {50: 40, 40: 30}  # 30 is hidden
    monkeypatch.setattr(
        processes, "read", lambda pid: SimpleNamespace(parent=shown[pid]) if pid in shown else None
    )
    assert not processes.descends(50)
    assert processes.descends(60), "who is gone may have been one"
    shown[30] = os.getpid()
    assert processes.descends(50)

    def forbidden(pid: int, number: int) -> None:
        assert (pid, number) == (60, 0)
        raise PermissionError

    monkeypatch.setattr(os, "kill", forbidden)
    assert not processes.descends(60), "it is another user's"


def test_whatever_an_engine_starts_descends_from_us_and_nobody_else_does(
    engine: Engine, subreaper: None, innocent: subprocess.Popen[bytes]
) -> None:
    async def test() -> None:
        started = engine.tree("daemonized")
        await soon(lambda: len(started.refresh()) > 1)
        assert all(processes.descends(one.pid) for one in started.members)
        await started.end(0.0)

    run(test)
    assert processes.descends(innocent.pid)
    assert not any(map(processes.descends, (os.getpid(), os.getppid(), 1, 0)))
    innocent.kill()
    innocent.wait()
    assert processes.descends(innocent.pid), "who is gone may have been one"


# -- what a killed daemon left ---

DAEMON = """
import asyncio, sys
from pathlib import Path
from caovand.adapters.system import processes
from caovand.adapters.child import Child
from tests.adapters.test_child import Engine

async def main():
    processes.become_subreaper()
    folder, look, *kinds = sys.argv[1:]
    engine = Engine(Path(folder))
    if not look:
        Child.refresh = lambda self: ()
    started = engine.tree("deaf-first", *kinds)
    pids = await engine.pids(len(kinds) + 1)
    if look:
        started.refresh()
    print(*pids, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.usefixtures("subreaper")
@pytest.mark.parametrize("look", ["yes", ""], ids=["seen", "before the first look"])
def test_a_next_daemon_ends_exactly_what_a_killed_one_left(
    tmp_path: Path, innocent: subprocess.Popen[bytes], look: str
) -> None:
    kinds = ["deaf", "setsid", "daemonized"]
    command = [sys.executable, "-c", DAEMON, str(tmp_path), look, *kinds]
    root = str(Path(TREE).parents[2])
    daemon = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=dict(os.environ, PYTHONPATH=root)
    )
    assert daemon.stdout is not None
    pids = [int(pid) for pid in daemon.stdout.readline().split()]
    daemon.kill()
    daemon.wait()
    daemon.stdout.close()
    assert len(pids) == 4
    ledger = tmp_path / "engine.json"
    assert {process.pid for process in orphans(ledger)} == set(pids)

    async def test() -> None:
        found, left = await end_orphans(ledger)
        assert {process.pid for process in found} == set(pids)
        assert left == ()

    run(test)
    assert not any(map(lives, pids))
    assert innocent.poll() is None
    assert not ledger.exists()


MARKS = Marks("pipe:[1]", "0123456789abcdef")


def write_ledger(path: Path, process: Process, **changes: Any) -> Path:
    """A ledger as a daemon would have left it whose engine was `process`."""
    child.record(path, process.session, process.start, [process], MARKS)
    document = json.loads(path.read_text(encoding="utf-8"))
    document.update(changes)
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_the_ledger_finds_a_recorded_process(
    tmp_path: Path, innocent: subprocess.Popen[bytes]
) -> None:
    seen = processes.read(innocent.pid)
    assert seen is not None
    assert orphans(write_ledger(tmp_path / "l", seen)) == (processes.read(innocent.pid),)


@pytest.mark.parametrize("by", ["its output", "its environment", "neither"])
def test_a_process_in_a_session_of_its_own_is_found_by_what_it_inherits(
    tmp_path: Path, by: str
) -> None:
    """A daemon that is killed early in a start has seen none of them."""
    mark = {MARK: MARKS.variable} if by == "its environment" else {}
    with subprocess.Popen(
        ["sleep", "600"], start_new_session=True, stdout=subprocess.PIPE, env={**os.environ, **mark}
    ) as started:
        try:
            assert started.stdout is not None
            pipe = f"pipe:[{os.fstat(started.stdout.fileno()).st_ino}]"
            marks = MARKS._replace(output=pipe) if by == "its output" else MARKS
            child.record(tmp_path / "l", 0, 0, (), marks)
            found = orphans(tmp_path / "l")
            assert [one.pid for one in found] == ([] if by == "neither" else [started.pid])
        finally:
            started.kill()


@pytest.mark.parametrize("marks", [1, {}, {"output": "", "variable": "x"}, {"output": "x"}])
def test_a_ledger_with_odd_marks_names_nobody(
    tmp_path: Path, innocent: subprocess.Popen[bytes], marks: object
) -> None:
    seen = processes.read(innocent.pid)
    assert seen is not None
    assert orphans(write_ledger(tmp_path / "l", seen, marks=marks)) == ()


def test_a_process_that_has_got_a_recorded_pid_since_is_left_alone(
    tmp_path: Path, innocent: subprocess.Popen[bytes]
) -> None:
    """Neither by its pid nor by its session, which is numbered after that pid."""
    seen = processes.read(innocent.pid)
    assert seen is not None
    before = replace(seen, start=seen.start - 500)
    assert orphans(write_ledger(tmp_path / "l", before)) == ()


def test_a_ledger_of_another_boot_names_nobody(
    tmp_path: Path, innocent: subprocess.Popen[bytes]
) -> None:
    seen = processes.read(innocent.pid)
    assert seen is not None
    assert orphans(write_ledger(tmp_path / "l", seen, boot_id="another")) == ()


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{", '{"boot_id": 1}', '{"members": 1}', '"x"', "\xff"]
)
def test_a_damaged_ledger_names_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / "l").write_text(text, encoding="latin-1")
    assert orphans(tmp_path / "l") == ()


@pytest.mark.parametrize(
    "members", [1, None, [1], [{}], [{"pid": "x", "start": 1}], [{"pid": None, "start": 1}]]
)
def test_a_ledger_with_odd_members_names_nobody(
    tmp_path: Path, innocent: subprocess.Popen[bytes], members: object
) -> None:
    seen = processes.read(innocent.pid)
    assert seen is not None
    assert orphans(write_ledger(tmp_path / "l", seen, members=members)) == ()


def test_no_ledger_means_nothing_left(tmp_path: Path) -> None:
    async def test() -> None:
        assert await end_orphans(tmp_path / "none") == ((), ())

    run(test)


def test_a_ledger_that_cannot_be_written_hurts_nobody(engine: Engine, tmp_path: Path) -> None:
    engine.ledger = tmp_path / "gone" / "engine.json"

    async def test() -> None:
        started = engine.tree("plain")
        await engine.pids(2)
        assert len(started.refresh()) == 2
        assert await started.end(5.0) == ()

    run(test)


def test_the_ledger_is_kept_up_to_date(engine: Engine) -> None:
    async def test() -> None:
        started = engine.tree("plain")
        await engine.pids(2)
        seen = started.refresh()
        document = json.loads(engine.ledger.read_text(encoding="utf-8"))
        assert document["members"] == [asdict(process) for process in seen]
        assert document["boot_id"] == processes.boot_id()
        await started.end(5.0)

    run(test)


# -- /proc ---


def test_our_own_process_is_read() -> None:
    us = processes.read(os.getpid())
    assert us is not None
    assert (us.parent, us.session, us.uid) == (os.getppid(), os.getsid(0), os.getuid())
    assert us in processes.all_processes()
    assert not us.zombie


def test_a_process_that_is_not_there_is_none() -> None:
    assert processes.read(1 << 30) is None


def test_a_name_made_to_mislead_is_read_right(engine: Engine) -> None:
    async def test() -> None:
        started = engine.tree("renamed")
        first, second = sorted(await engine.pids(2))
        seen = processes.read(second)
        assert seen is not None
        assert (seen.name, seen.parent, seen.session) == ("VLLM::Engine) R", first, first)
        await started.end(5.0)

    run(test)


def test_a_signal_never_hits_one_that_got_the_pid_since(
    innocent: subprocess.Popen[bytes],
) -> None:
    seen = processes.read(innocent.pid)
    assert seen is not None
    processes.send(replace(seen, start=seen.start - 1), signal.SIGKILL)
    innocent.send_signal(signal.SIGSTOP)  # a KILL would come first
    came = os.waitid(os.P_PID, innocent.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert came is not None
    assert came.si_code == os.CLD_STOPPED
    processes.send(seen, signal.SIGKILL)
    assert innocent.wait(30) == -signal.SIGKILL
    processes.send(seen, signal.SIGKILL)  # gone: fine


def test_a_zombie_is_no_living_process() -> None:
    dead = subprocess.Popen(["true"])
    eventually(lambda: (seen := processes.read(dead.pid)) is not None and seen.zombie)
    dead.wait()


@pytest.mark.skipif(SYS_EXIT is None, reason="the number of exit(2) is not known here")
def test_a_process_whose_first_thread_ended_still_lives() -> None:
    script = f"""
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print("ready", flush=True)
ctypes.CDLL(None).syscall({SYS_EXIT}, 0)
"""
    process = subprocess.Popen([sys.executable, "-S", "-c", script], stdout=subprocess.PIPE)
    stat = Path(f"/proc/{process.pid}/stat")
    try:
        eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
        assert lives(process.pid)
    finally:
        process.kill()
        process.communicate()


def test_descendants_are_found_through_generations() -> None:
    def process(pid: int, parent: int) -> Process:
        return Process(pid, 0, parent, 0, 0, "")

    table = [process(2, 1), process(3, 2), process(4, 3), process(5, 1), process(6, 6)]
    assert processes.descendants(table, [2]) == {3, 4}
    assert processes.descendants(table, [6]) == {6}


def test_a_cgroup_holds_its_groups_too(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "cgroup.procs").write_text("1\n2\n")
    (tmp_path / "below/cgroup.procs").write_text("3\n")
    assert processes.in_cgroup(tmp_path) == {1, 2, 3}
    assert processes.in_cgroup(tmp_path / "gone") == set()
    assert processes.in_cgroup(None) == set()


def test_there_is_no_group_of_ours_outside_systemd() -> None:
    assert processes.engine_cgroup({}, "main") is None
    assert processes.former_cgroup(None) is None
