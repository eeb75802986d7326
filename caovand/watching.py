"""Watching one child: its lines, its HTTP server, its exit; what the detector makes of them.

The detector's Watch is fed from the log pump's thread and from the loop, so a lock guards it. Its
signs become events of the machine on the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from caovand import proof
from caovand.adapters import http, kernel_log
from caovand.adapters.child import Child
from caovand.adapters.http import Endpoint, Stranger, Unanswered
from caovand.adapters.pump import Ring
from caovand.core import detector, limits
from caovand.core.config import WatchSection
from caovand.core.detector import Advanced, Broken, Cleared, Noticed, Observation, Probe, Sign
from caovand.core.events import Event, Exited, Failed, Progressed, Proven
from caovand.core.failure import Finding
from caovand.core.observation import ChildExit, Health, LogLine, ProbeResult, Progress, Tick, Unseen
from caovand.core.plan import Plan
from caovand.core.stall import stall_s
from caovand.core.status import served_name
from caovand.engines.vllm.cause import NEAR, announces, find_in_kernel
from caovand.engines.vllm.json_lines import plain
from caovand.engines.vllm.metrics import parse_metrics
from caovand.engines.vllm.phases import read
from caovand.peers import Peers
from caovand.reading import find_cause

ANSWER_S = 5.0
DRAIN_S = 0.2
LAST_WORDS_S = 5.0
LOG_BYTES = 4 << 20
FAILED_S = 300.0  # without progress, after a process of a start has said that it failed
SAID = 400  # lines kept from around the first that says that a process failed
PROBE_PROMPT = tuple(range(32, 48))


class Watching:
    """Observes the child of one generation; `apply` takes events, `notice` what people should know.

    `first_line` is the ring's line number before the child printed anything; `buses` are the PCI
    addresses of the cards it uses.
    """

    def __init__(
        self,
        generation: int,
        plan: Plan,
        endpoint: Endpoint,
        section: WatchSection,
        ring: Ring,
        apply: Callable[[Event], None],
        notice: Callable[[str, str], None],
    ) -> None:
        self.figures: dict[str, Any] = {}
        self.progress: Progress | None = None
        self.metrics = ""
        self.first_line = ring.count
        self.buses: frozenset[str] = frozenset()
        self._generation, self._plan, self._endpoint = generation, plan, endpoint
        self._section, self._ring = section, ring
        self._rules = detector.rules_of(section)
        self._apply, self._notice = apply, notice
        self._recent: deque[str] = deque(maxlen=NEAR)
        self._said: tuple[str, ...] = ()
        self._seen = self._said_to = self.first_line
        self._lock = threading.Lock()
        self._watch = detector.begin(_now())
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._evidence: Sequence[str] = ()
        self._polling = self._gave_up = self._over = self._shared = False
        # The limit is the unit's, ours as well as the engine's.
        self._memory = _memory_cgroup()
        self._oom_kills: int | None = None

    def heed(self, section: WatchSection) -> None:
        """Use other thresholds from now on."""
        self._section, self._rules = section, detector.rules_of(section)

    # -- what is seen -----------------------------------------------------------------------

    def on_lines(self, lines: Sequence[str]) -> None:
        """Lines the child printed; in the log pump's thread."""
        serving, now = self._watch.serving, _now()
        for line in lines:
            texts = plain(line)
            self._keep(line, texts)
            for text in texts:
                self._read(text, serving, now)

    def _read(self, line: str, serving: bool, now: float) -> None:
        mark, told = read(line)
        if mark is not None and mark.phase == "http" and mark.progress == 1.0 and not serving:
            self._said = ()  # it got over that
        if serving and mark is None:
            return
        for name, value in () if serving else told.items():
            # The draft model tells its own figures after those of the model.
            self.figures.setdefault(name, value)
        self.observe(LogLine(line, now, mark))

    def _keep(self, line: str, texts: Sequence[str]) -> None:
        """Remember what is said around the first failure, by a line that stands for `texts`.

        Every pending request adds a traceback to it, and so many fill the ring.
        """
        self._seen += 1
        if not self._said:
            self._recent.append(line)
            if any(map(announces, texts)):
                self._said, self._said_to = tuple(self._recent), self._seen
        elif len(self._said) < SAID:
            self._said, self._said_to = (*self._said, line), self._seen

    def observe(self, observation: Observation) -> None:
        """Let the detector see something; from any thread."""
        with self._lock:
            self._watch, signs = detector.observe(self._watch, observation, self._rules)
        for sign in signs:
            # The loop is closed where the last lines come after the daemon's own end.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._act, sign)

    def heard_kernel(self, child: Child, lines: Sequence[str]) -> None:
        """Look for a card's loss, and for our processes' faults, in words of the kernel."""
        lines = kernel_log.without_other_cards(lines, self.buses)
        found = find_in_kernel(lines, {process.pid for process in child.members})
        if found is not None and child.status is None:
            self._fail(replace(found, phase=self._phase))

    async def poll(self, child: Child, kernel: Sequence[str]) -> None:
        """Look at the HTTP server once, where no look is under way, and at the kernel's words."""
        self.heard_kernel(child, kernel)
        self.observe(Tick(_now()))
        self._give_up(child)
        if self._polling or not self._watch.serving:
            return
        self._polling = True
        try:
            health = await self._answer("/health")
            self.observe(Health(health.status if health else None, _now()))
            metrics = await self._answer("/metrics")
            if metrics is not None and metrics.status == 200:
                load = await asyncio.to_thread(self._load)
                self.metrics = metrics.body
                # Megabytes of short lines take a second: the loop feeds the watchdog.
                self.progress = await asyncio.to_thread(parse_metrics, metrics.body, load, _now())
                self.observe(self.progress)
        except Stranger as problem:
            self._met(problem)
        except Exception as problem:
            if limits.reached(problem):
                self.observe(Unseen(_now()))
            raise
        else:
            self._shared = False
        finally:
            self._polling = False

    def _give_up(self, child: Child) -> None:
        """Fail a start of which a process said that it failed, and that stands still since.

        The machine, too, waits for the phase's time, and knows nothing of the log.
        """
        watch, waited_s = self._watch, _now() - self._watch.moved_at
        if not self._said or watch.serving or self._gave_up or child.status is not None:
            return
        if waited_s < min(stall_s(watch.phase, self._rules.stall_s) / 2, FAILED_S):
            return
        self._gave_up = True
        text = f"no progress in phase {self._phase or 'launch'} for {waited_s:.0f} s"
        self._begin(self._fail_of_cause(Finding("start-stall", text, self._phase)))

    def _met(self, stranger: Stranger) -> None:
        """Another process has the engine's port: the second look in a row that sees it is believed.

        Requests are served all the same, and a restart would end them.
        """
        if self._shared:
            self._fail(proof.shared(stranger))
        else:
            self._notice("noticed", f"skipped a look at the engine: {stranger}")
        self._shared = True

    async def _answer(self, path: str) -> http.Answer | None:
        try:
            return await asyncio.to_thread(http.call, self._endpoint, path, ANSWER_S)
        except Stranger:
            raise
        except Unanswered as problem:
            if limits.reached(problem):
                raise  # we could not ask: that says nothing of the engine
            return None

    def _load(self) -> int | None:
        try:
            return http.pending_requests(self._endpoint, ANSWER_S)
        except Stranger:
            raise
        except Unanswered:
            return None

    # -- readiness and end ------------------------------------------------------------------

    async def prove(self, child: Child) -> None:
        """Wait for the child to do real work; Proven, or Failed where it never will."""

        def on_step(text: str) -> None:
            self._apply(Progressed(_now(), 0.5, self._generation, "proof", None, text))

        limit_s = stall_s("proof", self._section.stall_s)
        peers = Peers(child.pids)
        self._endpoint = replace(self._endpoint, vet=peers.vet)
        try:
            await proof.prove(peers, self._plan, self._endpoint, limit_s, on_step)
        except proof.NotReady as problem:
            # Where the engine is dying its exit says more than the request that failed with it.
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(child.ended(), LAST_WORDS_S)
            cause = None if child.status is not None else await self._cause("serving")
            if child.status is None:
                self._fail(cause or problem.finding)
            return
        with self._lock:
            self._watch = detector.proven(self._watch, _now())
        self._apply(Proven(_now(), random.random(), self._generation))

    async def until_exit(self, child: Child) -> None:
        """Wait for the child to end; Exited with the cause its log tells."""
        self._oom_kills = kernel_log.oom_kills(self._memory) if self._memory else None
        code = await child.ended()
        # Its last lines are still in the pipe, and they tell the cause.
        try:
            await asyncio.to_thread(child.drain, DRAIN_S)
        except RuntimeError as problem:
            if not limits.reached(problem):
                raise
            child.drain(DRAIN_S)  # no thread to be had, and not long
        phase = self._phase
        cause = await self._cause(phase) or self._killed_for_memory(phase)
        how = f"killed by signal {-code}" if code < 0 else f"exit status {code}"
        text = f"the engine ended ({how}) in phase {phase or 'launch'}"
        if cause is not None:
            finding = replace(cause, text=f"{cause.text} ({text})", phase=cause.phase or phase)
        else:
            finding = Finding("engine-died", text, phase)
        self._over = True
        self.observe(ChildExit(code, _now()))
        self._apply(Exited(_now(), random.random(), self._generation, finding))

    def _killed_for_memory(self, phase: str) -> Finding | None:
        now = kernel_log.oom_kills(self._memory) if self._memory else None
        if now is None or self._oom_kills is None or now <= self._oom_kills:
            return None
        text = "the kernel killed a process of the engine: its memory limit was reached"
        return Finding("host-oom", text, phase)

    def lines(self) -> list[str]:
        """What this child has printed, as far as it is still kept."""
        kept, last = self._ring.since(self.first_line, LOG_BYTES)
        said = self._said
        if not said or len(kept) == last - self.first_line >= self._said_to - self.first_line:
            return kept
        return [*said, *self._ring.since(self._said_to, LOG_BYTES)[0]]

    def evidence(self) -> Sequence[str]:
        """The lines in which a cause was found, else all: more may have been printed since."""
        return self._evidence or self.lines()

    async def _cause(self, phase: str, *, alive: bool = False) -> Finding | None:
        """What the child's log tells of its failure, None where nobody knows."""
        lines = self.lines()
        try:
            finding, why = await asyncio.to_thread(find_cause, lines, phase, alive=alive)
        except (RuntimeError, MemoryError) as problem:  # there are too many threads
            finding, why = None, str(problem) or type(problem).__name__
        if why:
            self._notice("noticed", f"cannot tell from the engine's log why it failed: {why}")
        if finding is not None:
            self._evidence = lines
        return finding

    async def _blamed(self, finding: Finding) -> Finding | None:
        """What a process of an engine that stopped says it failed of."""
        cause = await self._cause(finding.phase, alive=True)
        return cause and replace(cause, text=f"{cause.text} ({finding.text})")

    @property
    def _phase(self) -> str:
        return "serving" if self._watch.serving else self._watch.phase

    # -- what follows from it ---------------------------------------------------------------

    def _act(self, sign: Sign) -> None:
        if isinstance(sign, Advanced):
            self._apply(
                Progressed(
                    sign.at,
                    0.5,
                    self._generation,
                    sign.phase,
                    sign.progress,
                    sign.detail,
                    sign.heartbeat,
                )
            )
        elif isinstance(sign, Probe):
            self._notice("suspicion", f"{sign.reason}: asking the engine for a completion")
            self._begin(self._probe(sign.timeout_s))
        elif isinstance(sign, Cleared):
            self._notice("suspicion", f"the engine works: {sign.reason}")
        elif isinstance(sign, Noticed):
            self._notice("noticed", sign.text)
        elif isinstance(sign, Broken):
            self._begin(self._break(sign.finding))

    async def _break(self, finding: Finding) -> None:
        cause = None
        if finding.failure in ("hang", "start-stall"):
            cause = await self._blamed(finding)
        elif finding.failure == "engine-died":
            cause = await self._cause(self._phase)
        self._fail(cause or finding)

    async def _fail_of_cause(self, stalled: Finding) -> None:
        """Fail only where a process says what it failed of."""
        cause = await self._blamed(stalled)
        if cause is not None:
            self._fail(cause)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            # A fault of ours: said at once, not when the task is collected.
            context = {"message": "a look at the engine failed", "exception": problem}
            self._loop.call_exception_handler(context)

    def _fail(self, finding: Finding) -> None:
        if self._over:
            return  # it ended while its log was read, and that was told
        self._apply(Failed(_now(), random.random(), self._generation, finding))

    async def _probe(self, timeout_s: float) -> None:
        tokens, model = self._plan.mtp + 2, served_name(self._plan)
        asked = (http.complete, self._endpoint, model, PROBE_PROMPT, tokens, timeout_s)
        try:
            await proof.tried(*asked, lacking=lambda: self.observe(Unseen(_now())))
        except Stranger as problem:
            self._met(problem)
        except Unanswered as problem:
            self.observe(ProbeResult(False, str(problem), _now()))
        else:
            self.observe(ProbeResult(True, "", _now()))


def _memory_cgroup() -> Path | None:
    try:
        return kernel_log.memory_cgroup(
            Path("/proc/self/cgroup").read_text(errors="surrogateescape")
        )
    except OSError:
        return None


def _now() -> float:
    return time.monotonic()
