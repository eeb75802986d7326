"""Writes an incident for each failure, in a thread, so that neither loop nor restart waits.

Only evidence of the living engine delays its end, for a few seconds at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from caovand.adapters import evidence
from caovand.adapters.incidents import Incidents
from caovand.core import limits
from caovand.core.facts.ownership import Process
from caovand.core.log import Log
from caovand.core.reporting import incident
from caovand.core.reporting.incident import Case
from caovand.daemon import reading

STACKS_S = 4.0


class Recorder:
    """Stores incidents in `store`; calls `done(name, problem)` on the loop for each.

    `log` reads the engine's output. An incident with both a name and a problem is incomplete.
    """

    def __init__(self, store: Incidents, done: Callable[[str, str], None], log: Log) -> None:
        self._store, self._done, self._log = store, done, log
        self._loop = asyncio.get_running_loop()
        self._thread: threading.Thread | None = None
        self._taken: asyncio.Event | None = None

    def take(self, case: Case, members: Sequence[Process], engine_python: str) -> None:
        """Begin to record a failure; called on the loop, before the engine is ended."""
        if self._thread is not None and self._thread.is_alive():
            # A hung disk blocks one thread, not one for each failure.
            self._done("", "the previous incident is still being written")
            return
        taken = self._taken = asyncio.Event()

        def work() -> None:
            try:
                report, files, problem = self._gather(case, members, engine_python, taken)
                name = self._store.write(case.finding.failure, report, files)
            except Exception as fault:  # no fault here may affect the engine
                name, problem = "", str(fault)
            self._on_loop(lambda: self._done(name, problem))

        thread = threading.Thread(target=work, name="incident", daemon=True)
        try:
            thread.start()
        except RuntimeError as problem:  # no more threads
            taken.set()
            self._done("", limits.reached(problem) or str(problem))
        else:
            self._thread = thread

    async def before_kill(self) -> None:
        """Wait, a few seconds at most, until the evidence of the living engine is taken."""
        taken, self._taken = self._taken, None
        if taken is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(taken.wait(), STACKS_S + 1.0)

    def flush(self, timeout_s: float) -> None:
        """Wait (blocking) for an incident under way."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _gather(
        self, case: Case, members: Sequence[Process], engine_python: str, taken: asyncio.Event
    ) -> tuple[dict[str, Any], dict[str, str], str]:
        try:
            tree = evidence.process_tree(members)
            stacks = ""
            if case.finding.failure in incident.LIVE:
                stacks = evidence.stacks(members, engine_python, STACKS_S)
        finally:
            self._on_loop(taken.set)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        host = evidence.host_memory()
        draft = incident.draft(case, at=stamp, processes=tree, host=host)
        texts = {
            "kernel.txt": "".join(f"{line}\n" for line in case.kernel),
            "stacks.txt": stacks,
            "metrics.txt": case.metrics,
        }
        report, files, why = reading.clean_incident(
            self._log, draft, case.lines, texts, case.secrets
        )
        if why:
            why = f"secrets could not be removed from all of it: {why}"
        return report or incident.without_texts(case, at=stamp, why=why), files, why

    def _on_loop(self, work: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(work)
