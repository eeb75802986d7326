"""Which process belongs to which engine, where several run below one daemon.

A process belongs to an engine

1. in whose cgroup it is;
2. else in whose session it is, that of the engine's first process;
3. else to which it belonged when last seen, and so does what descends from its processes.

An orphan comes to the daemon, the subreaper, with another parent and perhaps another session than
it was born with. One that the daemon did not see before belongs to the engine

4. whose processes were seen in its session, or seen as what may have begun that session;
5. else whose output it writes to: the pipe is inherited, and each engine has its own;
6. else that alone can have started it: an engine is no younger than its processes, and one with a
   cgroup has them there. Where only one engine lives, that is the one.

Any other orphan may be of two engines, and neither takes it. It is ended with the last of those
that can have started it: from then on rule 6 holds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Process:
    """One process; (pid, start) names it forever, start is in clock ticks since boot."""

    pid: int
    start: int
    parent: int
    session: int
    uid: int
    name: str
    zombie: bool = False


@dataclass(frozen=True, eq=False)
class KnownEngine:
    """What is known about one engine: its first process, and its processes when last seen.

    `session` is the pid of the first process and `start` its start: nothing older is the engine's.
    `grouped` are the pids in its cgroup, None if it has none.
    """

    session: int
    start: int
    members: Collection[Process] = ()
    grouped: Collection[int] | None = None
    output: str = ""


Outputs = Callable[[Process], Collection[str]]


@dataclass(frozen=True)
class Ownership:
    """Each process's engine by pid, as its place among the engines; orphans of more than one."""

    by_pid: Mapping[int, int]
    unknown: tuple[Process, ...]


def assign_owners(
    table: Sequence[Process],
    engines: Sequence[KnownEngine],
    us: int,
    session: int,
    outputs: Outputs,
) -> Ownership:
    """Whose each process of `table` is.

    `us` is the daemon's pid and `session` its own; `outputs` asks what a process writes to.
    """
    seen = {
        (member.pid, member.start): place
        for place, engine in enumerate(engines)
        for member in engine.members
    }
    found: dict[int, int] = {}
    unknown = []
    for process in table:
        if process.pid == us:
            continue
        place = _place(process, engines, seen)
        if place is None and process.parent == us and process.session != session:
            place = _of_orphan(process, engines, outputs)
            if place is None and _candidates(process, engines):
                unknown.append(process)
        if place is not None:
            found[process.pid] = place
    _add_descendants(found, table, us)
    return Ownership(found, tuple(unknown))


def _place(
    process: Process, engines: Sequence[KnownEngine], seen: Mapping[tuple[int, int], int]
) -> int | None:
    """Whose a process is by cgroup, session, or because it was seen."""
    in_session: int | None = None
    for place, engine in enumerate(engines):
        if process.start < engine.start:
            continue
        if engine.grouped and process.pid in engine.grouped:
            return place
        # The number of an ended session may be reused: of several engines, it is the latest one's.
        if process.session == engine.session and (
            in_session is None or engines[in_session].start < engine.start
        ):
            in_session = place
    return seen.get((process.pid, process.start)) if in_session is None else in_session


def _of_orphan(process: Process, engines: Sequence[KnownEngine], outputs: Outputs) -> int | None:
    candidates = _candidates(process, engines)
    if len(candidates) <= 1:
        return candidates[0] if candidates else None
    known = [place for place in candidates if _knows_session(engines[place], process.session)]
    if len(known) == 1:
        return known[0]
    written = outputs(process)
    writing = [place for place in candidates if engines[place].output in written]
    return writing[0] if len(writing) == 1 else None


def _candidates(process: Process, engines: Sequence[KnownEngine]) -> list[int]:
    """The engines that can have started an orphan which no cgroup holds."""
    alone = len(engines) == 1
    return [
        place
        for place, engine in enumerate(engines)
        if process.start >= engine.start and (alone or engine.grouped is None)
    ]


def _knows_session(engine: KnownEngine, session: int) -> bool:
    return any(session in (member.session, member.pid) for member in engine.members)


def _add_descendants(found: dict[int, int], table: Iterable[Process], us: int) -> None:
    """Assign descendants of an engine's processes to it, except those of another engine."""
    children: dict[int, list[int]] = {}
    for process in table:
        children.setdefault(process.parent, []).append(process.pid)
    todo = list(found)
    while todo:
        parent = todo.pop()
        for pid in children.get(parent, ()):
            if pid not in found and pid != us:
                found[pid] = found[parent]
                todo.append(pid)
