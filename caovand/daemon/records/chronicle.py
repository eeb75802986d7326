"""Write an incident for each failure, in a thread, so that neither loop nor restart waits.

Only gathering evidence from the live engine delays its stop, by a few seconds at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from caovand.adapters.engine import evidence
from caovand.adapters.incidents import Incidents
from caovand.core import limits
from caovand.core.engine.log import Log
from caovand.core.facts.ownership import Process
from caovand.core.reporting import incident
from caovand.core.reporting.incident import FailureContext
from caovand.daemon.engine import reading

STACKS_S = 4.0


@dataclass(frozen=True)
class GatheredEvidence:
    """A failure's evidence without secrets; `name` is its incident's, "" if there is none.

    `problem` says what is missing and why; without a report, everything is.
    """

    report: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    name: str = ""


Then = Callable[[GatheredEvidence], None]


class Recorder:
    """Stores incidents in `store`; calls `done(name, problem)` on the loop for each.

    `log` parses the engine's output. An incident with both a name and a problem is incomplete.
    """

    def __init__(self, store: Incidents, done: Callable[[str, str], None], log: Log) -> None:
        self._store, self._done, self._log = store, done, log
        self._loop = asyncio.get_running_loop()
        self._threads: dict[str, threading.Thread] = {}
        self._taken: dict[str, asyncio.Event] = {}

    def take(
        self,
        case: FailureContext,
        members: Sequence[Process],
        engine_python: str,
        then: Then | None = None,
    ) -> None:
        """Start recording a failure; called on the loop, before the engine is stopped.

        `then` is called on the loop, whatever the outcome.
        """

        def work(gathered: GatheredEvidence) -> GatheredEvidence:
            name = self._store.write(case.finding.failure, gathered.report, gathered.files)
            return replace(gathered, name=name)

        def done(gathered: GatheredEvidence) -> None:
            self._done(gathered.name, gathered.problem)
            if then is not None:
                then(gathered)

        self._begin("incident", case, members, engine_python, work, done)

    def gather(
        self, case: FailureContext, members: Sequence[Process], engine_python: str, then: Then
    ) -> None:
        """Gather the same evidence only for `then`: no incident is stored or delayed."""
        self._begin("evidence", case, members, engine_python, lambda evidence: evidence, then)

    async def before_kill(self) -> None:
        """Wait, a few seconds at most, until the living engine's evidence is taken."""
        taken, self._taken = self._taken, {}
        with contextlib.suppress(asyncio.TimeoutError):
            waits = asyncio.gather(*(capture.wait() for capture in taken.values()))
            await asyncio.wait_for(waits, STACKS_S + 1.0)

    def flush(self, timeout_s: float) -> None:
        """Wait (blocking) for an incident in progress."""
        if thread := self._threads.get("incident"):
            thread.join(timeout_s)

    def _begin(
        self,
        name: str,
        case: FailureContext,
        members: Sequence[Process],
        engine_python: str,
        finish: Callable[[GatheredEvidence], GatheredEvidence],
        done: Then,
    ) -> None:
        if name in self._threads and self._threads[name].is_alive():
            # A hung disk blocks one thread, not one per failure.
            done(GatheredEvidence(problem="the previous incident is still being written"))
            return
        taken = self._taken[name] = asyncio.Event()

        def work() -> None:
            try:
                evidence = finish(self._gather(case, members, engine_python, taken))
            except Exception as fault:  # no bug here may affect the engine
                evidence = GatheredEvidence(problem=str(fault))
            self._on_loop(lambda: done(evidence))

        thread = threading.Thread(target=work, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as problem:  # no more threads
            taken.set()
            done(GatheredEvidence(problem=limits.limit_reached(problem) or str(problem)))
        else:
            self._threads[name] = thread

    def _gather(
        self,
        case: FailureContext,
        members: Sequence[Process],
        engine_python: str,
        taken: asyncio.Event,
    ) -> GatheredEvidence:
        try:
            tree = evidence.process_tree(members)
            stacks = ""
            if case.live or case.finding.failure in incident.LIVE_FAILURES:
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
        report, files, reason = reading.clean_incident(
            self._log, draft, case.lines, texts, case.secrets
        )
        if reason:
            reason = f"could not remove all secrets: {reason}"
        report = report or incident.without_texts(case, at=stamp, why=reason)
        return GatheredEvidence(report, files, problem=reason)

    def _on_loop(self, work: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(work)
