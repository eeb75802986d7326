"""The ledger of an engine's processes, and how to end those that a killed daemon left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from caovand.adapters.child.engines import Engines
from caovand.adapters.child.sweeper import sweep
from caovand.adapters.files import state_file
from caovand.adapters.privileges import engine_user
from caovand.adapters.system import processes
from caovand.core import limits
from caovand.core.facts import ledger as ledgers
from caovand.core.facts.ledger import MARK, Marks, ProcessLedger
from caovand.core.facts.ownership import Process

KILL_S = 10.0


def record(ledger: Path, session: int, start: int, found: Sequence[Process], marks: Marks) -> str:
    """Record these processes' owner; return why that failed, which must not stop serving."""
    try:
        user = engine_user.current()
        uid = user.uid if user else os.getuid()
        content = ProcessLedger(processes.boot_id(), session, start, uid, found, marks)
        state_file.write(ledger, ledgers.render(content))
    except (OSError, MemoryError) as problem:
        return f"cannot write {ledger}: {getattr(problem, 'strerror', None) or 'no memory left'}"
    return ""


def forget(ledger: Path) -> None:
    """Remove the ledger; one that cannot be removed names only dead processes."""
    with contextlib.suppress(OSError):
        ledger.unlink(missing_ok=True)


def orphans(
    ledger: Path, groups: Sequence[Path] = (), engines: Engines | None = None
) -> tuple[Process, ...]:
    """Find living processes that a killed daemon wrote to `ledger` or left in `groups`.

    None of them belongs to a living engine in `engines`.
    """
    table = processes.all_processes()
    owned = engines.owned(table) if engines else frozenset()
    grouped = {pid for group in groups for pid in processes.in_cgroup(group)}
    named = ledgers.named_pids(
        state_file.read_or_none(ledger), processes.boot_id(), table, _has_mark
    )
    roots = named | {process.pid for process in table if process.pid in grouped}
    ours = roots | processes.descendants(table, roots)
    ours -= {*owned, os.getpid()}
    return tuple(process for process in table if process.pid in ours and not process.zombie)


def _has_mark(process: Process, marks: Marks) -> bool:
    variable = f"{MARK}={marks.variable}"
    return marks.output in processes.outputs(process) or variable in processes.environ_of(process)


async def end_orphans(
    ledger: Path,
    before_kill: Callable[[Sequence[int]], Awaitable[None]] | None = None,
    groups: Sequence[Path] = (),
    engines: Engines | None = None,
) -> tuple[tuple[Process, ...], tuple[Process, ...]]:
    """End the processes that a killed daemon left behind; return those found, and those that
    survived KILL.

    `before_kill` gets the pids found. `groups` are cgroups without other processes; the processes
    of `engines` are left alone.
    """

    async def find() -> tuple[Process, ...]:
        if engine_user.current() is not None:  # it may be slow, or stopped
            try:
                return await asyncio.to_thread(orphans, ledger, groups, engines)
            except RuntimeError as problem:
                if not limits.limit_reached(problem):
                    raise
        return orphans(ledger, groups, engines)

    def kill_unseen() -> None:
        for group in groups:
            processes.kill_group(group)

    orphaned = await find()
    if orphaned and before_kill is not None:
        await before_kill([process.pid for process in orphaned])
    left = await sweep(find, KILL_S, kill_unseen, lambda: any(map(processes.is_populated, groups)))
    if not left:
        forget(ledger)
    return orphaned, left
