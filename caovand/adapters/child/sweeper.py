"""KILL an engine's processes until none is left."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from caovand.adapters.system import processes
from caovand.core.facts.ownership import Process

POLL_S = 0.02
QUIET_POLLS = 3  # in a row: one may miss a process that was between two pids
ROUNDS = 3  # of killing what is seen, before more is done about what is still new
TRACKER_GRACE_S = 1.0
COMMAND_LINE_S = 0.5  # timeout of reading another process, which may hang with it
UNSEEN = Process(0, 0, 0, 0, 0, "a process whose pid keeps changing")
"""Stands for processes in the engine's cgroup that were never seen alive."""


async def sweep(
    find: Callable[[], Awaitable[tuple[Process, ...]]],
    limit_s: float,
    kill_unseen: Callable[[], None] = lambda: None,
    hides: Callable[[], bool] = lambda: False,
) -> tuple[Process, ...]:
    """KILL what `find` returns until it returns nothing; return what is left after `limit_s`.

    A dead process in its result proves a living one. `kill_unseen` ends processes that hide from
    `find`, change their pid each time, or may not be signalled.

    Python's resource tracker ends by itself once all others have, and removes what they shared.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + limit_s
    others_at = clock()
    trackers: dict[tuple[int, int], bool] = {}
    quiet = rounds = 0
    while True:
        survivors = await find()
        left = tuple(process for process in survivors if not process.zombie)
        hidden = not left and hides()
        quiet = 0 if survivors or hidden else quiet + 1
        if quiet >= QUIET_POLLS:
            return ()
        fresh = [process for process in left if (process.pid, process.start) not in trackers]
        trackers.update(await _find_resource_trackers(fresh))
        others = [process for process in left if not trackers[process.pid, process.start]]
        if others:
            others_at = clock()
        doomed = others or (left if clock() > others_at + TRACKER_GRACE_S else ())
        signalled = [processes.send(process, signal.SIGKILL) for process in doomed]
        rounds += bool(survivors or hidden)
        if hidden or not all(signalled) or (rounds > ROUNDS and (fresh or not left)):
            kill_unseen()
        if clock() > deadline and not quiet:
            return left or (UNSEEN,)
        await asyncio.sleep(POLL_S)


async def _find_resource_trackers(fresh: Sequence[Process]) -> dict[tuple[int, int], bool]:
    """Which of these are Python's resource trackers; one that does not answer in time is not
    counted."""
    command_lines = {
        process: asyncio.ensure_future(asyncio.to_thread(processes.is_resource_tracker, process))
        for process in fresh
    }
    if command_lines:
        # If no thread can be started, none counts as a tracker: they are killed like the others.
        await asyncio.wait(command_lines.values(), timeout=COMMAND_LINE_S)
    return {
        (process.pid, process.start): answer.done()
        and answer.exception() is None
        and answer.result()
        for process, answer in command_lines.items()
    }


def for_people(left: Sequence[Any]) -> str:
    """Format processes for people: `VLLM::EngineCore (pid 17)`."""
    return ", ".join(f"{process.name} (pid {process.pid})" for process in left)
