"""Find engine processes that earlier daemons left, for the doctor."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from caovand.adapters.system import processes
from caovand.engines import registry


def find_orphans() -> tuple[tuple[int, str], ...]:
    """Engine processes that neither their server nor caovan supervises any more."""
    table = {process.pid: process for process in processes.all_processes()}
    commands = {pid: processes.command_of(pid) or process.name for pid, process in table.items()}
    return tuple(
        (process.pid, process.name) for process in orphans_in(table, commands) if not process.zombie
    )


def orphans_in(
    table: Mapping[int, processes.Process], commands: Mapping[int, str]
) -> Iterator[processes.Process]:
    """Processes in `table` that have outlived their engine, according to their command lines."""
    patterns = [registry.engine_of(kind).dependents for kind in registry.MODULES]
    dependents = [
        pid
        for pid, command in commands.items()
        if any(pattern.match(command) for pattern in patterns)
    ]
    for pid in dependents:
        if _is_orphan(table[pid], table, dependents):
            yield table[pid]


def _is_orphan(
    process: processes.Process,
    table: Mapping[int, processes.Process],
    dependents: Collection[int],
) -> bool:
    """Whether neither this process nor its engine's first process still has the parent that started
    it."""
    parent = table.get(process.parent)
    while parent is not None and parent.pid in dependents:
        process, parent = parent, table.get(parent.parent)
    if parent is None or parent.pid == 1:
        return True
    # A session's first process has a parent in another session.
    return process.pid != process.session != parent.session
