"""Determine which of the daemon's engines each process belongs to.

Rules, in order:

1. the engine whose cgroup contains it;
2. the engine whose session contains it, the session of the engine's first process;
3. the engine it belonged to when last seen, which also owns its descendants.

The daemon is the subreaper: an orphan is reparented to it, possibly with a new session. An orphan
that the daemon has not seen before belongs to the engine

4. whose processes were seen in its session, or may have created that session;
5. whose output pipe it writes to: pipes are inherited, and each engine has its own;
6. that is the only possible origin: an engine is no younger than its processes, and an engine
   with a cgroup has them in it. With a single living engine, it is that one.

Any other orphan is ambiguous, and no engine owns it. The orphan is killed together with the last of
its possible engines: from then on rule 6 applies.
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
    """The known facts about an engine: its first process, and its processes when last seen.

    `session` is the first process's pid and `start` its start time: nothing older belongs to the
    engine. `grouped` are the pids in its cgroup, None without one.
    """

    session: int
    start: int
    members: Collection[Process] = ()
    grouped: Collection[int] | None = None
    output: str = ""


Outputs = Callable[[Process], Collection[str]]


@dataclass(frozen=True)
class Ownership:
    """Each process's engine by pid, as an index into the engines; and ambiguous orphans."""

    by_pid: Mapping[int, int]
    unknown: tuple[Process, ...]


def assign_owners(
    table: Sequence[Process],
    engines: Sequence[KnownEngine],
    us: int,
    session: int,
    outputs: Outputs,
) -> Ownership:
    """Assign each process of `table` to an engine.

    `us` is the daemon's pid and `session` its session; `outputs` returns what a process writes to.
    """
    seen = {
        (member.pid, member.start): place
        for place, engine in enumerate(engines)
        for member in engine.members
    }
    owners: dict[int, int] = {}
    unknown = []
    for process in table:
        if process.pid == us:
            continue
        place = _known_owner(process, engines, seen)
        if place is None and process.parent == us and process.session != session:
            place = _owner_of_orphan(process, engines, outputs)
            if place is None and _candidates(process, engines):
                unknown.append(process)
        if place is not None:
            owners[process.pid] = place
    _add_descendants(owners, table, us)
    return Ownership(owners, tuple(unknown))


def _known_owner(
    process: Process, engines: Sequence[KnownEngine], seen: Mapping[tuple[int, int], int]
) -> int | None:
    """The process's engine by cgroup, session or earlier sighting."""
    in_session: int | None = None
    for place, engine in enumerate(engines):
        if process.start < engine.start:
            continue
        if engine.grouped and process.pid in engine.grouped:
            return place
        # The id of an ended session may be reused: the latest engine with it owns it.
        if process.session == engine.session and (
            in_session is None or engines[in_session].start < engine.start
        ):
            in_session = place
    return seen.get((process.pid, process.start)) if in_session is None else in_session


def _owner_of_orphan(
    process: Process, engines: Sequence[KnownEngine], outputs: Outputs
) -> int | None:
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
    """Engines that may have started an orphan outside any cgroup."""
    alone = len(engines) == 1
    return [
        place
        for place, engine in enumerate(engines)
        if process.start >= engine.start and (alone or engine.grouped is None)
    ]


def _knows_session(engine: KnownEngine, session: int) -> bool:
    return any(session in (member.session, member.pid) for member in engine.members)


def _add_descendants(owners: dict[int, int], table: Iterable[Process], us: int) -> None:
    """Assign the descendants of an engine's processes to it, except another engine's."""
    children: dict[int, list[int]] = {}
    for process in table:
        children.setdefault(process.parent, []).append(process.pid)
    todo = list(owners)
    while todo:
        parent = todo.pop()
        for pid in children.get(parent, ()):
            if pid not in owners and pid != us:
                owners[pid] = owners[parent]
                todo.append(pid)
