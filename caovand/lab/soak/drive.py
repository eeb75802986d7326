"""Drive a soak: load, with quiet moments in between for known answers and speeds."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from caovand.adapters.network.http import Unanswered
from caovand.cli.common.client import DaemonClient
from caovand.cli.common.errors import CommandError
from caovand.cli.common.progress import Screen
from caovand.core.health.canary import Degenerate
from caovand.lab.bench.target import Target
from caovand.lab.core.soak.schedule import Limits
from caovand.lab.core.soak.seen import AnswerComparison, AnswerTimes, SoakRecord
from caovand.lab.core.soak.verdict import DAEMON_EVENT, clock
from caovand.lab.soak import asking
from caovand.lab.soak.asking import Requester
from caovand.lab.soak.clients import PAUSE_AFTER_FAILURE_S, SoakClients
from caovand.lab.soak.ledger import SoakLedger
from caovand.lab.soak.watch import SoakWatch

QUIETS, MIN_QUIETS = 48, 36
"""Number of quiet moments in a soak: enough for the rank test, at little cost in time."""
TARGET_SAMPLES = 400
MIN_SAMPLE_S, MAX_SAMPLE_S = 0.5, 10.0
PACE_TOKENS, ANSWER_TOKENS, SHORT_TOKENS = 32, 128, 512
MAX_LONG_TOKENS = 100_000
USUAL_CONTEXT = 2048
KNOWN_TASKS = 4
MIN_ANSWER = 8
MARGIN_TOKENS = 64
PATIENCE_S = (1.0, 20.0)
"""Minimum and maximum time limit for the prefill of one prompt and for one answer, without load;
the limit is a sixtieth of the soak."""
MIN_GAP_S, MAX_GAP_S = 3.0, 600.0
"""Seconds between quiet moments."""
MAX_LATE_S = 120.0
"""The time to wait for the last answers."""
TICK_S = 0.05
SPEED_SAMPLES = 60
"""Samples over which the displayed speed is averaged."""
FINAL_STATES = ("FAILED", "STOPPED")
"""States that last until someone acts."""


@dataclass(frozen=True)
class SoakOrder:
    """The duration and the number of clients; `salt` begins every prompt and differs between
    runs."""

    seconds: float
    at_once: int
    seed: int
    salt: str


class Soak:
    """One soak. `run` returns the observations, even if Ctrl-C ended it early."""

    def __init__(
        self,
        client: DaemonClient,
        target: Target,
        order: SoakOrder,
        passages: Sequence[str],
        screen: Screen,
    ) -> None:
        self._order, self._screen = order, screen
        self._asking = Requester(target, passages, order.salt, order.seed)
        self._ledger = SoakLedger()
        self._watch = SoakWatch(client, self._ledger)
        self._every_s = min(max(order.seconds / TARGET_SAMPLES, MIN_SAMPLE_S), MAX_SAMPLE_S)
        self._sampled_at = -self._every_s
        self._recent: deque[tuple[float, int]] = deque(maxlen=SPEED_SAMPLES)
        context = target.context or USUAL_CONTEXT
        self._context, self._short = context, min(SHORT_TOKENS, context // 8)
        self._quiets = 0
        self._due = 0.0
        self._over = False
        self._ended_at = 0.0
        self.stopped = False

    def run(self) -> SoakRecord:
        """Learn the reference answers, then soak. Raises the errors of the first requests."""
        self._screen.say("recording the reference answers while the engine is otherwise idle")
        order = self._order
        self._clients = SoakClients(self._asking, self._limits(), order.seed, self._ledger)
        self._learn()
        self._watch.reset()
        self._ledger.begin()
        self._clients.start(order.at_once)
        try:
            self._soak()
        except KeyboardInterrupt:
            self.stopped = True
        except CommandError as problem:  # the daemon is gone
            self._watch.note(DAEMON_EVENT, problem.message)
        finally:
            self._ended_at = self._ledger.now()
            self._clients.end()
        if self._clients.crash is not None:
            raise self._clients.crash
        with contextlib.suppress(CommandError):
            self._watch.sample()  # the daemon's last events
        return self._record()

    def _limits(self) -> Limits:
        """Prompt and answer lengths that the engine handles in time at its current speed."""
        low, high = PATIENCE_S
        patience_s = min(max(self._order.seconds / 60, low), high)
        self._pace()  # compilation by the first request does not count as speed
        pace = self._pace()
        answer = min(ANSWER_TOKENS, self._context // 8)
        if pace.token_s:
            answer = max(min(answer, int(patience_s / pace.token_s)), MIN_ANSWER)
        in_time = int(self._short / pace.first_token_s * patience_s)
        long = max(
            min(self._context - answer - MARGIN_TOKENS, MAX_LONG_TOKENS, in_time), self._short
        )
        constrained = self._asking.target.api.constrained is not None
        return Limits(self._short, long, answer, KNOWN_TASKS, constrained)

    def _soak(self) -> None:
        least_s = min(MIN_GAP_S, self._order.seconds / MIN_QUIETS)
        every_s = min(max(self._order.seconds / QUIETS, least_s), MAX_GAP_S)
        while not self._finished():
            self._due = self._ledger.now() + every_s
            if self._is_reference_engine():
                self._clients.admit()
                self._until(lambda: self._finished() or self._quiet_due())
            self._clients.pause()
            self._until(self._idle)
            self._until(lambda: self._finished() or bool(self._watch.status["served"]))
            if not self._finished():
                self._run_guarded(self._use_quiet_moment)
        if self._clients.idle(0.0) and not self._over:
            self._run_guarded(self._compare_all)

    def _finished(self) -> bool:
        return self._over or self._ledger.now() >= self._order.seconds

    def _quiet_due(self) -> bool:
        return self._ledger.now() >= self._due or not self._is_reference_engine()

    def _is_reference_engine(self) -> bool:
        """Whether the engine that gave the known answers still serves."""
        status = self._watch.status
        return bool(status["served"]) and status["generation"] == self._clients.generation

    def _idle(self) -> bool:
        """Whether no request is running; at the end, answers that take too long are ignored."""
        late = self._ledger.now() >= self._order.seconds + MAX_LATE_S
        return late or self._clients.idle(TICK_S)

    def _until(self, holds: Callable[[], bool]) -> None:
        """Sample and show progress until a condition holds or the soak is over."""
        while not holds() and not self._over:
            now = self._ledger.now()
            if now >= self._sampled_at + self._every_s:
                self._sampled_at = now
                status = self._watch.sample()
                self._show(now)
                self._over = status["state"] in FINAL_STATES
            self._over |= self._clients.crash is not None
            time.sleep(TICK_S)

    def _run_guarded(self, ask: Callable[[], None]) -> None:
        """Send a request while no other is running; record a failure like any client's."""
        try:
            ask()
        except Unanswered as problem:
            self._ledger.record_failure(problem)
        except Degenerate as problem:
            self._ledger.record_wrong("degenerate answer", str(problem))
        else:
            return
        time.sleep(PAUSE_AFTER_FAILURE_S)

    def _learn(self) -> None:
        """Record the reference answers of this start: another start may answer differently."""
        self._clients.known = self._asking.learn(self._clients.limits)
        self._clients.generation = self._watch.status["generation"]

    def _use_quiet_moment(self) -> None:
        self._watch.sample()
        if not self._is_reference_engine():
            self._learn()
        self._compare(self._quiets % KNOWN_TASKS)
        self._quiets += 1
        self._ledger.pace(self._pace(), alone=True)

    def _compare_all(self) -> None:
        for number in range(KNOWN_TASKS):
            self._compare(number)

    def _compare(self, number: int) -> None:
        """Request a known prompt twice in a row."""
        prompt = self._clients.known[number]
        for again in (False, prompt.repeats):
            comparison = self._asking.compare(prompt)
            at_s = round(self._ledger.now(), 3)
            self._ledger.compare(AnswerComparison(at_s, number, True, again, comparison))
            self._ledger.answered("known", asking.KNOWN_TOKENS)

    def _pace(self) -> AnswerTimes:
        """Time one answer to a new prompt; the lengths are always the same."""
        prompt = self._asking.sized.prompt(self._short)
        done = self._asking.ask(prompt, PACE_TOKENS, streamed=True).answered
        assert done is not None
        at_s = round(self._ledger.now(), 3)
        return AnswerTimes(at_s, self._watch.status["generation"], done.first_token_s, done.token_s)

    def _show(self, now: float) -> None:
        """Show a line of progress; tokens of running conversations count once they are complete."""
        left = max(self._order.seconds - now, 0.0)
        tokens = self._ledger.tokens
        self._recent.append((now, tokens))
        first, before = self._recent[0]
        speed = (tokens - before) / (now - first) if now > first else 0.0
        self._screen.line(
            min(int(100 * now / self._order.seconds), 100),
            f"{clock(left)} left, {sum(self._ledger.requests.values()):,} requests,"
            f" {len(self._ledger.errors):,} errors, {speed:,.0f} tokens/s",
        )

    def _record(self) -> SoakRecord:
        ledger, watch = self._ledger, self._watch
        return SoakRecord(
            seconds=min(self._ended_at, self._order.seconds),
            samples=tuple(watch.samples),
            paces=tuple(ledger.paces),
            loaded=tuple(ledger.loaded),
            compared=tuple(ledger.compared),
            errors=tuple(ledger.errors),
            events=tuple(watch.events),
            rungs=watch.rungs,
            requests=dict(ledger.requests),
            tokens=ledger.tokens,
        )
