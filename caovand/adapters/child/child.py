"""One engine process: started in its own session, ended with all processes it left behind.

The command runs through `launch`, which joins the engine's cgroup before anything else, and
requests TERM when we die; that signal is bound to the forking thread, so a Child is created in the
main thread. Its processes are written to `ledger`, so that the next daemon can end what a killed
one left behind, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from caovand.adapters.child.engines import Engines, EngineTraces
from caovand.adapters.child.orphans import KILL_S, forget, record
from caovand.adapters.child.sweeper import sweep
from caovand.adapters.confinement.popen import Confinement, popen_arguments
from caovand.adapters.engine.pump import F_SETPIPE_SZ, PIPE_BYTES, LogSinks, Pump
from caovand.adapters.privileges import engine_user
from caovand.adapters.privileges.program import ProgramOfUser
from caovand.adapters.system import processes
from caovand.core.facts.ledger import MARK, Marks
from caovand.core.facts.ownership import Process

HUNT_S = 0.01
DRAIN_S = 0.2
LATE_S = 10.0


class CannotSpawn(Exception):
    """The engine's command could not be started."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """An engine's command, and its limits."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cgroup: Path | None = None
    confinement: Confinement | None = None
    unlimited_stack: bool = False


class Child:
    """A running engine. `members` are its living processes at the last refresh, `seen` all pids so
    far."""

    def __init__(
        self, launch: Launch, sinks: LogSinks, ledger: Path, engines: Engines | None = None
    ) -> None:
        read_end, write_end = _make_pipe()
        output = f"pipe:[{os.fstat(write_end).st_ino}]"
        self._marks = Marks(output, secrets.token_hex(16))
        record(ledger, 0, 0, (), self._marks)
        try:
            self._process = _start(launch, {MARK: self._marks.variable}, write_end)
        except OSError as problem:
            os.close(read_end)
            forget(ledger)
            if isinstance(problem, engine_user.SpawnerEnded):  # not the command's fault
                raise
            raise CannotSpawn(f"cannot start {launch.argv[0]}: {problem.strerror}") from problem
        finally:
            os.close(write_end)
        self.pid = self._process.pid
        self.cgroup, self._ledger = launch.cgroup, ledger
        self._engines = Engines() if engines is None else engines
        self._ended = asyncio.Event()
        self._kill_now = asyncio.Event()
        self.members: tuple[Process, ...] = ()
        self.seen: set[int] = {self.pid}
        self.unknown: tuple[Process, ...] = ()
        """Orphans at the last refresh that may belong to this engine or to another: neither ends
        them."""
        self.unrecorded = ""
        """Why the ledger is outdated: the next daemon would not find this engine."""
        loop = asyncio.get_running_loop()
        try:
            with contextlib.ExitStack() as undo:
                undo.callback(os.close, read_end)
                undo.callback(_kill_and_reap, self._process)
                seen = processes.read(self.pid)
                start = seen.start if seen else 0
                self._traces = EngineTraces(self.pid, start, launch.cgroup, output)
                self._engines.add(self._traces)
                undo.callback(self._engines.remove, self._traces)
                self._watch = os.pidfd_open(self.pid)
                undo.callback(os.close, self._watch)
                loop.add_reader(self._watch, self._on_exit)
                undo.callback(loop.remove_reader, self._watch)
                self.refresh()
                undo.callback(forget, ledger)
                self._pump = Pump(read_end, sinks)
                undo.pop_all()
        except (OSError, RuntimeError, MemoryError) as problem:
            raise CannotSpawn(f"cannot watch the engine: {problem}") from problem

    @property
    def status(self) -> int | None:
        """Exit status of the first process, negative for a signal; None while it lives."""
        return self._process.returncode

    async def ended(self) -> int:
        """Wait for the first process to end; return its status."""
        await self._ended.wait()
        assert self._process.returncode is not None
        return self._process.returncode

    def refresh(self) -> tuple[Process, ...]:
        """Refresh the engine's processes, and write changes to the ledger."""
        self._refresh_members()
        return self.members

    def _refresh_members(self) -> tuple[Process, ...]:
        """Refresh the members; return them with those that died since the last refresh."""
        family, unknown = self._engines.family(self._traces)
        dead = processes.reap(family, self.pid)
        processes.reap(unknown, self.pid)
        living = tuple(process for process in family if not process.zombie)
        known = {(p.pid, p.start) for p in self.members}
        if self.unrecorded or {(p.pid, p.start) for p in living} != known:
            self.unrecorded = record(
                self._ledger, self.pid, self._traces.start, living, self._marks
            )
        self.members = self._traces.members = living
        self.unknown = tuple(process for process in unknown if not process.zombie)
        self.seen.update(process.pid for process in living)
        return (*living, *dead)

    def _kill_unseen(self) -> None:
        """KILL processes that change their pid faster than they can be listed."""
        if not processes.kill_group(self.cgroup):
            self._engines.kill_adopted(self._traces, HUNT_S)

    def pids(self) -> list[int]:
        """The engine's current processes; callable from any thread, and records nothing."""
        return self._engines.pids(self._traces)

    def drain(self, limit_s: float) -> None:
        """Wait (blocking) for the last output.

        Waits at most `limit_s` for a process that keeps the pipe open, then `LATE_S` more for what
        it has already written: on a busy machine the pump may not have read it yet.
        """
        if not self._pump.join(limit_s):
            self._pump.catch_up(LATE_S)

    def give_up(self) -> None:
        """Stop watching the engine, though processes may have survived its end."""
        self._traces.abandoned = True

    def hurry(self) -> None:
        """Cut the grace of a running `end` short."""
        self._kill_now.set()

    async def end(
        self, grace_s: float, before_kill: Callable[[], Awaitable[None]] | None = None
    ) -> tuple[Process, ...]:
        """Send TERM, KILL after `grace_s`, then KILL the rest; return the survivors.

        `before_kill` inspects the engine, which may have gone on starting, one last time.
        """
        if not self._ended.is_set():
            with contextlib.suppress(ProcessLookupError, engine_user.SpawnerEnded):
                self._process.send_signal(signal.SIGTERM)
            await self._wait_for_first(grace_s, self._ended, self._kill_now)
        if before_kill is not None:
            await before_kill()
        left = await self.kill(KILL_S)
        if not left:
            # Right after the latest refresh: if two engines end at the same time, the last to be
            # removed gets the processes that may belong to either.
            self._engines.remove(self._traces)
            await self.ended()
            await asyncio.to_thread(self.drain, DRAIN_S)
            forget(self._ledger)
        return left

    async def kill(self, limit_s: float) -> tuple[Process, ...]:
        """KILL all its processes, as far as permitted; return those left after `limit_s`."""

        async def find() -> tuple[Process, ...]:
            return self._refresh_members()

        populated = partial(processes.is_populated, self.cgroup)
        return await sweep(find, limit_s, self._kill_unseen, populated)

    @staticmethod
    async def _wait_for_first(timeout_s: float, *events: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    def _on_exit(self) -> None:
        if self._process.poll() is None:
            return
        asyncio.get_running_loop().remove_reader(self._watch)
        os.close(self._watch)
        self._ended.set()


def _start(
    launch: Launch, mark: Mapping[str, str], output: int
) -> subprocess.Popen[bytes] | ProgramOfUser:
    """Start the command, as the engine's user if there is one; raises OSError."""
    user, cgroup = engine_user.current(), launch.cgroup
    with popen_arguments(
        launch.argv,
        {**launch.env, **mark},
        launch.confinement,
        cgroup=cgroup if user is None else None,  # the spawner joins the cgroup for its user
        unlimited_stack=launch.unlimited_stack,
    ) as arguments:
        words, own, stdin = arguments["args"], arguments["env"] | mark, arguments["stdin"]
        if user is None:
            return subprocess.Popen(
                words, env=own, stdin=stdin, stdout=output, stderr=output, cwd="/",
                start_new_session=True,
            )  # fmt: skip
        stdio = (stdin.fileno(), output, output)
        ends_with = signal.SIGTERM
        pid = user.start(words, own, stdio, cgroup=cgroup, session=True, ends_with=ends_with)
        return ProgramOfUser(user, pid)


def _kill_and_reap(process: subprocess.Popen[bytes] | ProgramOfUser) -> None:
    """KILL and reap a process that nobody watches; leave it if that is not permitted."""
    with contextlib.suppress(engine_user.SpawnerEnded):
        process.kill()
        process.wait()


def _make_pipe() -> tuple[int, int]:
    """The pipe that an engine prints to: its read and write ends."""
    try:
        read_end, write_end = os.pipe()
    except OSError as problem:
        raise CannotSpawn(f"cannot start the engine: {problem.strerror}") from problem
    with contextlib.suppress(OSError):
        fcntl.fcntl(write_end, F_SETPIPE_SZ, PIPE_BYTES)
    return read_end, write_end
