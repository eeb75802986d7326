"""Watch one child: feed its lines, HTTP responses and exit to the detector.

A lock guards the detector's WatchState, which both the log pump's thread and the loop use. Its
signs become events of the machine on the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from caovand.adapters.child import Child
from caovand.adapters.network.http import Stranger, Unanswered
from caovand.adapters.system import kernel_log
from caovand.adapters.system.oom_kills import OomKills
from caovand.core import limits
from caovand.core.config.schema import WatchSection
from caovand.core.healing.failure import Finding
from caovand.core.health import detector
from caovand.core.health.detector import Observation
from caovand.core.health.observation import (
    ChildExit,
    Health,
    LogLine,
    NotObserved,
    ProbeResult,
    WatchTick,
)
from caovand.core.health.signs import Advanced, Broken, Cleared, Noticed, Probe, Sign
from caovand.core.health.stall import stall_s
from caovand.core.lifecycle.events import Exited, Failed, Progressed, Proven
from caovand.daemon.engine import proof, scrape
from caovand.daemon.engine.causes import Causes
from caovand.daemon.engine.peers import Peers
from caovand.daemon.engine.watched_run import WatchedRun
from caovand.daemon.shared import now
from caovand.daemon.tasks import Tasks
from caovand.engines.common.logs.rows.kernel import OF_PROGRAM, XID_STOPPED, find_in_kernel

DRAIN_S = 0.2
LAST_WORDS_S = 5.0
FAILURE_GRACE_S = 300.0
"""Maximum silence of a start after one of its processes has reported a failure."""
PROBE_PROMPT = tuple(range(32, 48))


class Watching:
    """Observes the child of one generation; `buses` are the PCI addresses of its cards."""

    def __init__(self, run: WatchedRun) -> None:
        self.reported: dict[str, Any] = {}
        self.metrics = ""
        self.probed_at = float("-inf")
        self.buses: frozenset[str] = frozenset()
        self.causes = Causes(run.engine.log, run.ring, run.notice, run.occupied)
        self._run, self._endpoint = run, run.endpoint
        self._rules = self._rules_of(run.section)
        self._lock = threading.Lock()
        self._watch = detector.begin(now())
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks(self._report_fault)
        self._polling = False
        self._gave_up = False
        self._over = False
        self._stranger_answers = False
        # a fault of its processes on a card, from the kernel's log
        self._fault: Finding | None = None

    def reconfigure(self, section: WatchSection) -> None:
        """Use these thresholds from now on."""
        self._rules = self._rules_of(section)

    def _rules_of(self, section: WatchSection) -> detector.DetectorRules:
        return detector.DetectorRules(section, lookup_drafts=self._run.plan.uses_lookup_drafts)

    def on_lines(self, lines: Sequence[str]) -> None:
        """Process lines of the child; called from the log pump's thread."""
        serving, at = self._watch.serving, now()
        for line in lines:
            texts = self._run.engine.log.plain(line)
            self.causes.kept.keep(line, texts)
            for text in texts:
                self._read(text, serving, at)

    def _read(self, line: str, serving: bool, at: float) -> None:
        mark, figures = self._run.engine.log.read(line)
        listens = mark is not None and mark.phase == self._run.engine.log.listening
        if listens and mark is not None and mark.progress == 1.0 and not serving:
            self.causes.kept.recovered()
        if serving and mark is None:
            return
        for name, value in () if serving else figures.items():
            # The draft model's sizes follow the main model's.
            self.reported.setdefault(name, value)
        self.observe(LogLine(line, at, mark))

    def observe(self, observation: Observation) -> None:
        """Pass an observation to the detector; callable from any thread."""
        with self._lock:
            self._watch, signs = detector.observe(self._watch, observation, self._rules)
        for sign in signs:
            # The loop is closed if the last lines arrive after the daemon has stopped.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._act, sign)

    def on_kernel_lines(self, child: Child, lines: Sequence[str]) -> None:
        """Check the kernel's lines for a lost card and for faults of our processes."""
        lines = kernel_log.without_other_cards(lines, self.buses)
        finding = find_in_kernel(lines, {process.pid for process in child.members})
        if finding is None or child.status is not None:
            return
        finding = replace(finding, phase=self._phase)
        if finding.signature not in (row.id for row in OF_PROGRAM):
            self._fail(finding)
        elif self._fault is None:
            self._fault = finding
            self._tasks.begin(self._fail_of_fault(child))
        elif self._fault.signature == XID_STOPPED.id:
            self._fault = finding

    async def _fail_of_fault(self, child: Child) -> None:
        """Fail with the engine's own message, which comes later: one Xid can stand for many
        faults.
        """
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(child.ended(), LAST_WORDS_S)
        if child.status is None and (fault := self._fault) is not None:
            self._fail(await self.causes.find(fault.phase, alive=True) or fault)

    async def poll(self, child: Child, kernel: Sequence[str]) -> None:
        """Check the kernel's lines, and the HTTP server unless a check is already running."""
        self.on_kernel_lines(child, kernel)
        # An engine without answers has no counters: silence would be mistaken for a hang.
        self.observe(WatchTick(now()) if self._run.answers else NotObserved(now()))
        self._give_up(child)
        if self._polling or not self._watch.serving or not self._run.answers:
            return
        self._polling, api = True, self._run.engine.api
        try:
            health = await scrape.answer(self._endpoint, api.health)
            self.observe(Health(health.status if health else None, now()))
            if scraped := await scrape.metrics(self._endpoint, api, self._run.at_engine()):
                self.metrics = scraped.body
                self._run.on_reading(scraped.reading)
                self.observe(scraped.reading.progress)
        except Stranger as problem:
            self._on_stranger(problem)
        except Exception as problem:
            if limits.limit_reached(problem):
                self.observe(NotObserved(now()))
            raise
        else:
            self._stranger_answers = False
        finally:
            self._polling = False

    def _give_up(self, child: Child) -> None:
        """Fail a start that has stalled since one of its processes reported a failure.

        The state machine does not see the log, and would wait for the phase's full time limit.
        """
        watch, waited_s = self._watch, now() - self._watch.last_progress_at
        ended = self._gave_up or child.status is not None
        if not self.causes.kept.failed or watch.serving or ended:
            return
        if waited_s < min(stall_s(watch.phase, self._rules.watch.stall_s) / 2, FAILURE_GRACE_S):
            return
        self._gave_up = True
        text = f"no progress in phase {self._phase or 'launch'} for {waited_s:.0f} s"
        self._tasks.begin(self._fail_of_cause(Finding("start-stall", text, self._phase)))

    def _on_stranger(self, stranger: Stranger) -> None:
        """Handle another process on the engine's port; two checks in a row that find it are a
        failure.

        Requests may still be served, and a restart would end them.
        """
        if self._stranger_answers:
            self._fail(proof.port_taken(stranger))
        else:
            self._run.notice("noticed", f"skipped an engine check: {stranger}")
        self._stranger_answers = True

    async def prove(self, child: Child) -> None:
        """Wait until the child does real work; apply Proven, or Failed if it never will."""
        run = self._run

        def on_step(text: str) -> None:
            run.apply(Progressed(at=now(), generation=run.generation, phase="proof", detail=text))

        limit_s = stall_s("proof", self._rules.watch.stall_s)
        peers = Peers(child.pids)
        self._endpoint = replace(self._endpoint, vet=peers.vet)
        try:
            await proof.prove(run.engine, peers, run.plan, self._endpoint, limit_s, on_step)
        except proof.NotReady as problem:
            # A dying engine's exit says more than the request that failed with it.
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(child.ended(), LAST_WORDS_S)
            cause = None if child.status is not None else await self.causes.find("serving")
            if child.status is None:
                self._fail(cause or problem.finding)
            return
        if await self._answers_wrongly("proof", limit_s):
            return
        self.serves()

    def serves(self) -> None:
        """Apply Proven: the engine does real work."""
        with self._lock:
            self._watch = detector.proven(self._watch, now())
        self._run.apply(Proven(at=now(), chance=random.random(), generation=self._run.generation))

    async def until_exit(self, child: Child) -> None:
        """Wait for the child to exit; apply Exited with the cause from its log."""
        kills = OomKills(self._run.cgroup)
        code = await child.ended()
        # Its last lines, which contain the cause, are still in the pipe.
        try:
            await asyncio.to_thread(child.drain, DRAIN_S)
        except RuntimeError as problem:
            if not limits.limit_reached(problem):
                raise
            child.drain(DRAIN_S)  # no thread available; this is short
        phase = self._phase
        cause = await self.causes.find(phase)
        if (cause is None or cause.maybe_killed) and kills.any():
            text = "the kernel killed a process of the engine at its memory limit"
            cause = Finding("host-oom", text, phase)
        elif cause is None or cause.maybe_killed:
            cause = self._fault or cause
        how = f"killed by signal {-code}" if code < 0 else f"exit status {code}"
        text = f"the engine exited ({how}) in phase {phase or 'launch'}"
        if cause is not None:
            finding = replace(cause, text=f"{cause.text} ({text})", phase=cause.phase or phase)
        else:
            finding = Finding("engine-died", text, phase)
        self._over = True
        self.observe(ChildExit(code, now()))
        self._end(Exited, finding)

    @property
    def _phase(self) -> str:
        return "serving" if self._watch.serving else self._watch.phase

    def _act(self, sign: Sign) -> None:
        ACTIONS[type(sign)](self, sign)

    def _advance(self, sign: Advanced) -> None:
        self._run.apply(
            Progressed(
                at=sign.at,
                generation=self._run.generation,
                phase=sign.phase,
                progress=sign.progress,
                detail=sign.detail,
                heartbeat=sign.heartbeat,
            )
        )

    def _begin_probe(self, sign: Probe) -> None:
        self._run.notice("suspicion", f"{sign.reason}: sending a test completion")
        self._tasks.begin(self._probe(sign.timeout_s, sign.idle))

    def _clear(self, sign: Cleared) -> None:
        self._run.notice("suspicion", f"the engine works: {sign.reason}")

    def _report(self, sign: Noticed) -> None:
        self._run.notice("noticed", sign.text)

    def _begin_break(self, sign: Broken) -> None:
        self._tasks.begin(self._break(sign.finding))

    async def _break(self, finding: Finding) -> None:
        cause = None
        if finding.failure in ("hang", "start-stall"):
            cause = await self.causes.of_stopped(finding)
        elif finding.failure == "engine-died":
            cause = await self.causes.find(self._phase)
        self._fail(cause or finding)

    async def _fail_of_cause(self, stalled: Finding) -> None:
        """Fail only if a process reports a cause."""
        cause = await self.causes.of_stopped(stalled)
        if cause is not None:
            self._fail(cause)

    def _report_fault(self, fault: BaseException) -> None:
        """Report a bug of ours at once, not when its task is garbage-collected."""
        context = {"message": "an engine check failed", "exception": fault}
        self._loop.call_exception_handler(context)

    def _fail(self, finding: Finding) -> None:
        if self._over:
            return  # it exited while its log was being read, which has been reported
        self._end(Failed, finding)

    def _end(self, kind: type[Failed] | type[Exited], finding: Finding) -> None:
        at, generation = now(), self._run.generation
        self._run.apply(kind(at=at, chance=random.random(), generation=generation, finding=finding))

    async def _probe(self, timeout_s: float, idle: bool) -> None:
        plan, api = self._run.plan, self._run.engine.api
        asked = (
            proof.count_answer,
            api,
            plan,
            self._endpoint,
            PROBE_PROMPT,
            plan.mtp + 2,
            timeout_s,
        )
        try:
            await proof.retry_on_limit(*asked, lacking=lambda: self.observe(NotObserved(now())))
        except Stranger as problem:
            self._on_stranger(problem)
        except Unanswered as problem:
            self.observe(ProbeResult(False, str(problem), now()))
        else:
            self.observe(ProbeResult(True, "", now()))
            if idle:
                await self._answers_wrongly("serving", timeout_s)
        self.probed_at = now()

    async def _answers_wrongly(self, phase: str, timeout_s: float) -> bool:
        """Compare the answer to the fixed prompt; if it is wrong, fail and return True."""
        canary = self._run.canary
        finding = await canary.check(self._endpoint, timeout_s, phase) if canary else None
        if finding is not None:
            self._fail(finding)
        return finding is not None


ACTIONS: Mapping[type[Sign], Callable[[Watching, Any], None]] = {
    Advanced: Watching._advance,
    Probe: Watching._begin_probe,
    Cleared: Watching._clear,
    Noticed: Watching._report,
    Broken: Watching._begin_break,
}
"""The action for each sign of the detector."""
