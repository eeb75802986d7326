"""Thread-safe record of what the clients of a soak observed."""

from __future__ import annotations

import threading
import time
from collections import Counter

from caovand.adapters.network.http import Unanswered
from caovand.lab.core.soak.seen import AnswerComparison, AnswerTimes, Mishap
from caovand.lab.streamed import BadStatus


class SoakLedger:
    """All observations; times are seconds since `begin`, negative before it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = time.monotonic()
        self._over = False
        self.requests: Counter[str] = Counter()
        self.tokens = 0
        self.errors: list[Mishap] = []
        self.compared: list[AnswerComparison] = []
        self.paces: list[AnswerTimes] = []
        self.loaded: list[AnswerTimes] = []

    def begin(self) -> None:
        """Start the clock."""
        self._begun = time.monotonic()

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begun

    def close(self) -> None:
        """Stop recording failures: from now on, our own actions cause them."""
        with self._lock:
            self._over = True

    def answered(self, kind: str, tokens: int) -> None:
        """Count a successful request."""
        with self._lock:
            self.requests[kind] += 1
            self.tokens += tokens

    def record_failure(self, problem: Unanswered) -> None:
        """Record a request without an answer."""
        kind = "no answer"
        if isinstance(problem, BadStatus):
            kind = f"HTTP {problem.status}"
        elif "timed out" in str(problem):
            kind = "timeout"
        self.record_wrong(kind, str(problem))

    def record_wrong(self, kind: str, text: str) -> None:
        """Record a request with a wrong answer."""
        with self._lock:
            if not self._over:
                self.errors.append(Mishap(round(self.now(), 3), kind, text))

    def compare(self, comparison: AnswerComparison) -> None:
        """Record an answer to a known prompt."""
        with self._lock:
            self.compared.append(comparison)

    def pace(self, times: AnswerTimes, *, alone: bool) -> None:
        """Record the times of an answer."""
        with self._lock:
            (self.paces if alone else self.loaded).append(times)
