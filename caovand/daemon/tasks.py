"""Background work on the loop whose bugs end the daemon, so that systemd starts a fresh one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Task = asyncio.Task[None]


class Tasks:
    """The running tasks; `on_fault` receives the exception of a failed one."""

    def __init__(self, on_fault: Callable[[BaseException], None]) -> None:
        self.on_fault = on_fault
        self._loop = asyncio.get_running_loop()
        self._tasks: set[Task] = set()  # the loop itself holds no reference to a task

    def begin(self, work: Coroutine[Any, Any, None]) -> Task:
        """Start work in the background."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def cancel(self) -> None:
        """Cancel all tasks."""
        for task in list(self._tasks):
            task.cancel()

    def _done(self, task: Task) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self.on_fault(fault)


def cancel(task: Task | None) -> None:
    """Cancel a task that is no longer needed; it may be the caller itself, at its end."""
    if task is not None and task is not asyncio.current_task():
        task.cancel()
