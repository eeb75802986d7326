"""Which processes belong to which of the daemon's engines.

vLLM renames its processes, which empties /proc/PID/environ, so a marker there does not survive. A
process's owner follows from its cgroup, session and ancestry: core/facts/ownership.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from caovand.adapters.system import processes
from caovand.core.facts.ownership import KnownEngine, Ownership, Process, assign_owners


@dataclass(eq=False)
class EngineTraces:
    """The marks of one engine's processes, and those that were last seen.

    `session` is the pid of its first process and `start` its start time. `output` is the file its
    processes write to. An engine that was `abandoned` is no longer watched, though a process of it
    may live.
    """

    session: int
    start: int
    cgroup: Path | None = None
    output: str = ""
    members: tuple[Process, ...] = ()
    abandoned: bool = False

    def known(self) -> KnownEngine:
        """Add the processes currently in its cgroup."""
        grouped = None if self.cgroup is None else processes.in_cgroup(self.cgroup)
        return KnownEngine(self.session, self.start, self.members, grouped, self.output)


class Engines:
    """The engines of this daemon that may have living processes: none is mistaken for another's."""

    def __init__(self) -> None:
        self._all: tuple[EngineTraces, ...] = ()

    def add(self, engine: EngineTraces) -> None:
        """Add an engine that was started."""
        self._all = (*self._all, engine)

    def remove(self, engine: EngineTraces) -> None:
        """Remove an engine without living processes."""
        self._all = tuple(other for other in self._all if other is not engine)

    def family(self, wanted: EngineTraces) -> tuple[list[Process], list[Process]]:
        """Find an engine's processes, and orphans that may equally well be another's.

        Both include zombies.
        """
        table, engines = processes.all_processes(), self._including(wanted)
        owners = _owners(table, [engine.known() for engine in engines])
        living = {owners.by_pid.get(process.pid) for process in table if not process.zombie}
        for place, engine in enumerate(engines):
            if engine.abandoned and place not in living:
                self.remove(engine)
        place = engines.index(wanted)
        return [p for p in table if owners.by_pid.get(p.pid) == place], list(owners.unknown)

    def pids(self, wanted: EngineTraces) -> list[int]:
        """The pids of an engine's living processes; callable from any thread, changes nothing."""
        table, engines = processes.all_processes(), self._including(wanted)
        owners = _owners(table, [engine.known() for engine in engines])
        place = engines.index(wanted)
        return [p.pid for p in table if owners.by_pid.get(p.pid) == place and not p.zombie]

    def _including(self, engine: EngineTraces) -> tuple[EngineTraces, ...]:
        """All engines, including this one even if it was removed already."""
        return self._all if engine in self._all else (*self._all, engine)

    def owned(self, table: Sequence[Process]) -> frozenset[int]:
        """Find the pids of the processes of all engines that are still watched."""
        engines = [engine.known() for engine in self._all if not engine.abandoned]
        return frozenset(_owners(table, engines).by_pid) if engines else frozenset()

    def kill_adopted(self, wanted: EngineTraces, limit_s: float) -> None:
        """KILL an engine's orphans as we inherit them, for `limit_s` seconds.

        A process that forks and ends again and again has another pid before all of /proc is read.
        Our own children are listed by one read, and keep their pids until we wait for them.
        """
        traces = self._including(wanted)
        engines, place = [engine.known() for engine in traces], traces.index(wanted)
        children = Path(f"/proc/self/task/{os.getpid()}/children")
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            try:
                pids = [int(pid) for pid in children.read_bytes().split()]
            except OSError:  # a kernel without this file
                return
            table = [p for p in map(processes.read, pids) if p and p.pid != wanted.session]
            owners = _owners(table, engines).by_pid
            adopted = [process for process in table if owners.get(process.pid) == place]
            for process in adopted:
                if not process.zombie:
                    with contextlib.suppress(OSError):
                        processes.send(process, signal.SIGKILL)
            processes.reap(adopted, wanted.session)


def _owners(table: Sequence[Process], engines: Sequence[KnownEngine]) -> Ownership:
    return assign_owners(table, engines, os.getpid(), os.getsid(0), processes.outputs)
