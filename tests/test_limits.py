"""Limits of the machine: what lacks descriptors, threads or memory now is done later.

Every call that needs one fails in turn, while an engine starts, serves and ends: the daemon lives
on, takes nothing that it could not look at for absent, and goes on once there is enough.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import errno
import io
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from caovand.adapters.files.directories import Directories
from caovand.adapters.log import Echo
from caovand.adapters.network import http
from caovand.adapters.network.http import Unanswered
from caovand.adapters.system import processes
from caovand.adapters.system.threads import Threads
from caovand.core import limits
from caovand.core.config.schema import Config, WatchSection
from caovand.core.facts.inventory import Inventory
from caovand.core.healing import ladder
from caovand.core.healing.failure import Finding
from caovand.core.lifecycle.events import Start, Stop
from caovand.core.lifecycle.state import State
from caovand.core.slot import MAIN_SLOT
from caovand.daemon.engine import proof
from caovand.daemon.shortage import OVER_S, Shortage
from caovand.daemon.start import inspection
from caovand.daemon.start.inspection import PreparedStart
from caovand.daemon.supervisor import Supervisor
from caovand.engines.vllm.healing.cures import HEALING
from caovand.preparation import memories
from tests.core.machines import CUDA, inventory, plan
from tests.patience import soon

STORY_S = 12.0
PACKAGE = str(Path(limits.__file__).parents[1])

# The name of each call that may meet a limit, where it is looked up, and how it says so.
CALLS: tuple[tuple[str, Any, str, Callable[[], BaseException]], ...] = (
    ("open", builtins, "open", lambda: OSError(errno.EMFILE, "Too many open files")),
    ("io.open", io, "open", lambda: OSError(errno.ENFILE, "Too many open files in system")),
    ("os.open", os, "open", lambda: OSError(errno.EMFILE, "Too many open files")),
    ("os.pipe", os, "pipe", lambda: OSError(errno.EMFILE, "Too many open files")),
    ("os.pidfd_open", os, "pidfd_open", lambda: OSError(errno.EMFILE, "Too many open files")),
    ("os.listdir", os, "listdir", lambda: OSError(errno.EMFILE, "Too many open files")),
    ("os.scandir", os, "scandir", lambda: OSError(errno.ENOMEM, "Cannot allocate memory")),
    ("mkstemp", tempfile, "mkstemp", lambda: OSError(errno.EMFILE, "Too many open files")),
    ("Popen", subprocess, "Popen", lambda: OSError(errno.EAGAIN, "Temporarily unavailable")),
    ("socket", socket, "socket", lambda: OSError(errno.EMFILE, "Too many open files")),
    ("thread", threading.Thread, "start", lambda: RuntimeError("can't start new thread")),
    ("memory", pathlib.Path, "read_text", MemoryError),
)


class Fault:
    """Makes calls fail while `on`, where they come out of caovand's own code; counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on, self.met = False, 0
        self._monkeypatch = monkeypatch

    def put(self, holder: Any, name: str, problem: Callable[[], BaseException]) -> None:
        """Put the fault in the place of a call."""
        real = getattr(holder, name)

        def call(*arguments: Any, **named: Any) -> Any:
            if self.on and self._from_us():
                self.met += 1
                raise problem()
            return real(*arguments, **named)

        self._monkeypatch.setattr(holder, name, call)

    @staticmethod
    def _from_us() -> bool:
        frame = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_filename.startswith(PACKAGE):
                return True
            frame = frame.f_back  # type: ignore[assignment]
        return False


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Fault:
    return Fault(monkeypatch)


@pytest.fixture
def world(tmp_path: Path, fault: Fault, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An engine that is a shell script, and a machine that is made up; everything soon."""
    engine = tmp_path / "engine"
    engine.write_text("#!/bin/sh\necho started\nexec sleep 600\n")
    engine.chmod(0o755)
    machine = inventory(engine=replace(CUDA, python=str(engine)))
    ready = PreparedStart(plan(machine), machine, "fingerprint", "auto")

    def look(*_: object) -> Inventory:
        Path("/proc/self/stat").read_text()  # needs a descriptor, as the real one does
        return machine

    async def proven(*_: object) -> None:
        """At once."""

    async def check_all_reduce(*_: object) -> None:
        """The cards are made up too."""

    monkeypatch.setattr(inspection, "inspect", look)
    monkeypatch.setattr(inspection, "planned_for", lambda *_: ready)
    monkeypatch.setattr(inspection, "check_cards", lambda *_: None)
    monkeypatch.setattr(proof, "prove", proven)
    monkeypatch.setattr("caovand.daemon.engine.run.check_all_reduce", check_all_reduce)
    monkeypatch.setattr(http, "call", _unreachable)
    for name in ("supervisor.POLL_S", "supervisor.MAX_TICK_S", "engine.run.RETRY_S"):
        monkeypatch.setattr(f"caovand.daemon.{name}", 0.02)
    monkeypatch.setattr("caovand.daemon.shortage.OVER_S", 0.2)
    monkeypatch.setattr("caovand.daemon.cards.BACK_S", 0.0)
    yield tmp_path
    fault.on = False
    for process in processes.all_processes():
        with contextlib.suppress(OSError):
            if str(tmp_path).encode() in Path(f"/proc/{process.pid}/environ").read_bytes():
                processes.send(process, signal.SIGKILL)


def _unreachable(*_: object) -> None:
    with contextlib.closing(socket.socket()):
        raise Unanswered("nobody answers")


class Story:
    """A supervisor that runs in a loop of its own."""

    def __init__(self, folder: Path) -> None:
        asyncio.get_running_loop().set_default_executor(Threads())
        echo = Echo("console", io.StringIO())
        places = Directories(*[folder] * 4)
        log = structlog.get_logger()
        config = Config(watch=WatchSection(recheck_s=0.05))
        self.whole = Supervisor(folder / "c", config, places, {"HOME": str(folder)}, log, echo)
        (self.one,) = self.whole.slots.values()
        self.running = asyncio.ensure_future(self.whole.run())

    async def until(self, *states: State) -> None:
        def reached() -> bool:
            assert not self.running.done(), self.running.exception()
            return self.one.snapshot.state in states

        await soon(reached, STORY_S)

    async def looks(self, holds: Callable[[], object]) -> None:
        """Let it work on until that is so."""

        def so() -> bool:
            assert not self.running.done(), self.running.exception()
            return bool(holds())

        await soon(so, STORY_S)

    async def stop(self) -> None:
        self.one.apply_operator_event(Stop(at=time.monotonic(), quit=True))
        await asyncio.wait_for(self.running, STORY_S)

    def texts(self) -> list[str]:
        return [notice.text for notice in self.whole.notices]


def living(pid: int | None) -> bool:
    process = processes.read(pid or 0)
    return process is not None and not process.zombie


parameters = pytest.mark.parametrize(
    ("holder", "name", "problem"), [one[1:] for one in CALLS], ids=[one[0] for one in CALLS]
)


@parameters
def test_an_engine_that_serves_is_not_touched(
    fault: Fault, world: Path, holder: Any, name: str, problem: Callable[[], BaseException]
) -> None:
    fault.put(holder, name, problem)

    async def test() -> None:
        story = Story(world)
        story.one.apply_operator_event(Start(at=time.monotonic()))
        await story.until(State.SERVING)
        child = story.one.run.child
        assert child is not None
        fault.on = True
        looked = asyncio.get_running_loop().time() + 0.3
        await story.looks(lambda: asyncio.get_running_loop().time() > looked)
        fault.on = False
        said = [text for text in story.texts() if "; retrying" in text]
        assert len(said) <= 1
        if said:
            await story.looks(lambda: "threads and memory suffice again" in story.texts()[-1])
        assert story.one.snapshot.state is State.SERVING
        assert story.one.run.child is child
        assert [process.pid for process in child.refresh()] == [child.pid]
        await story.stop()

    asyncio.run(test())


@pytest.mark.long
@parameters
def test_an_engine_is_started_once_it_can_be(
    fault: Fault, world: Path, holder: Any, name: str, problem: Callable[[], BaseException]
) -> None:
    fault.put(holder, name, problem)

    async def test() -> None:
        story = Story(world)
        fault.on = True
        story.one.apply_operator_event(Start(at=time.monotonic()))
        await story.until(State.HOLD, State.SERVING)
        held = story.one.snapshot
        if held.state is State.HOLD:
            met = fault.met
            await story.looks(lambda: fault.met > met + 5)  # more often than [watch] failures
            assert "raise" in held.reason or "memory" in held.reason
        fault.on = False
        await story.until(State.SERVING)
        await story.stop()

    asyncio.run(test())


@pytest.mark.long
@parameters
def test_an_engine_is_ended_to_the_last(
    fault: Fault, world: Path, holder: Any, name: str, problem: Callable[[], BaseException]
) -> None:
    fault.put(holder, name, problem)

    async def test() -> None:
        story = Story(world)
        story.one.apply_operator_event(Start(at=time.monotonic()))
        await story.until(State.SERVING)
        assert story.one.run.child is not None
        pid = story.one.run.child.pid
        fault.on = True
        story.one.apply_operator_event(Stop(at=time.monotonic()))
        waited = asyncio.get_running_loop().time() + 0.3
        await story.looks(lambda: asyncio.get_running_loop().time() > waited)
        fault.on = False
        await story.until(State.STOPPED)
        assert not living(pid)
        assert not memories.ledgers(world, MAIN_SLOT)[0].exists()
        await story.stop()

    asyncio.run(test())


def test_each_of_these_calls_is_met_somewhere() -> None:
    """A call that nothing in the supervisor's reach makes any more would test nothing."""
    text = "".join(path.read_text() for path in Path(PACKAGE).rglob("*.py"))
    for word in ("open(", "os.open(", "os.pipe(", "pidfd_open(", "listdir(", "scandir(", "mkstemp(",
                 "Popen(", "Thread(", "read_text("):  # fmt: skip
        assert word in text


@pytest.mark.parametrize(
    ("problem", "remedy"),
    [
        (OSError(errno.EMFILE, "x"), "LimitNOFILE"),
        (OSError(errno.ENFILE, "x"), "fs.file-max"),
        (OSError(errno.EAGAIN, "x"), "TasksMax"),
        (RuntimeError("can't start new thread"), "TasksMax"),
        (OSError(errno.ENOMEM, "x"), "MemoryMax"),
        (MemoryError(), "MemoryMax"),
        (OSError(errno.ENOENT, "x"), ""),
        (RuntimeError("loop is closed"), ""),
        (ValueError(), ""),
        (None, ""),
    ],
)
def test_a_limit_is_known_by_itself_and_as_a_cause(
    problem: BaseException | None, remedy: str
) -> None:
    assert remedy in limits.limit_reached(problem)
    assert bool(limits.limit_reached(problem)) == bool(remedy)
    caused = Unanswered("x")
    caused.__cause__ = problem
    assert limits.limit_reached(caused) == limits.limit_reached(problem)


def test_what_cannot_be_looked_at_is_not_absent() -> None:
    with limits.suppress_absent():
        raise FileNotFoundError
    with pytest.raises(OSError, match="many"), limits.suppress_absent():
        raise OSError(errno.EMFILE, "too many")


def test_a_shortage_is_said_once_and_its_end_once() -> None:
    now, said = 0.0, list[str]()
    shortage = Shortage(lambda kind, text: said.append(text), lambda: now)
    shortage.refresh()
    for _ in range(3):
        assert shortage.covers("look", OSError(errno.EMFILE, "x"))
        shortage.refresh()
    assert len(said) == 1
    assert not shortage.covers("look", OSError(errno.ENOENT, "x"))
    now += OVER_S
    for _ in range(3):
        shortage.refresh()
    assert (len(said), shortage.text) == (2, "")


def test_no_number_of_limits_reached_lowers_a_plan_or_gives_it_up() -> None:
    finding = Finding(
        "engine-died", "cannot start sh", "launch", {ladder.MACHINE_LIMIT: "raise it"}
    )
    for repeats in range(1, 50):
        decision = ladder.decide(plan(inventory()), finding, repeats, ladder.LadderRules(HEALING))
        assert (decision.verdict, decision.excused) == ("hold", True)
