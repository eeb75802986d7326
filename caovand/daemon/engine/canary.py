"""Send an engine the fixed prompt, and compare its answer with the first one
(`core.health.canary`).

First answers outlive engine and daemon, in the slot's folder. An answer made while other requests
were served does not count: it is neither stored nor compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from caovand.adapters import model_folder
from caovand.adapters.files import state_file
from caovand.adapters.network import completions, http
from caovand.adapters.network.completions import completion_body
from caovand.adapters.network.http import Endpoint, Unanswered
from caovand.core import limits
from caovand.core.engine.record import Engine
from caovand.core.facts.inventory import Inventory
from caovand.core.healing.failure import Finding
from caovand.core.health import canary
from caovand.core.health.canary import Degenerate, GreedyAnswer
from caovand.core.health.observation import ProgressCounters
from caovand.core.plan import Plan

METRICS_S = 5.0
NOT_NUMBERS = "its logits are not finite numbers"


class FirstAnswers:
    """Each plan's first answer, in the file `path`; `notice` publishes texts for people."""

    def __init__(self, path: Path, notice: Callable[[str, str], None]) -> None:
        self._path, self._notice = path, notice
        self._kept = canary.from_document(state_file.read_or_none(path)) or {}

    def find(self, key: str) -> GreedyAnswer | None:
        """The answer stored under this key."""
        return self._kept.get(key)

    def keep(self, key: str, answer: GreedyAnswer) -> None:
        """Store an answer; publish a notice if that fails."""
        document = canary.to_document({**self._kept, key: answer})
        self._kept = canary.from_document(document) or {}
        try:
            state_file.write(self._path, document)
        except OSError as problem:
            self._notice("noticed", f"cannot keep the answer to a fixed prompt: {problem}")

    def forget(self) -> None:
        """Forget all answers: the next ones count as first."""
        self._kept = {}
        self._path.unlink(missing_ok=True)


class Canary:
    """The fixed prompt for one start of an engine with this plan."""

    def __init__(
        self,
        engine: Engine,
        plan: Plan,
        inventory: Inventory,
        answers: FirstAnswers,
        notice: Callable[[str, str], None],
    ) -> None:
        self._api, self._plan, self._inventory = engine.api, plan, inventory
        self._answers, self._notice = answers, notice
        coarse = engine.planning.is_quantised(plan, inventory)
        self._margin = canary.COARSE_MARGIN if coarse else canary.MARGIN
        self._key = ""
        self._excused = False

    async def check(self, endpoint: Endpoint, timeout_s: float, phase: str) -> Finding | None:
        """A finding if the answer is wrong twice in a row; None if it is right, or unknown.

        Whether the engine answers at all is checked elsewhere.
        """
        if not self._api.logprobs or self._plan.task != "generate":
            return None
        wrong = await self._compare(endpoint, timeout_s, phase)
        again = await self._compare(endpoint, timeout_s, phase) if wrong else None
        if wrong and not again:
            self._notice("noticed", "one of two answers to a fixed prompt differed")
        return again

    async def _compare(self, endpoint: Endpoint, timeout_s: float, phase: str) -> Finding | None:
        """Compare one answer with the first, or store it as the first."""
        words = "a fixed prompt got a wrong answer: "
        try:
            answer = await asyncio.to_thread(self._ask, endpoint, timeout_s)
            first = self._answers.find(self._key)
            text = canary.find_change(first, answer, self._margin) if first and answer else ""
        except Degenerate as problem:
            return Finding("answers-degenerate", f"{words}{problem}", phase)
        except Exception as problem:
            if isinstance(problem, (Unanswered, OSError)) or limits.limit_reached(problem):
                return None
            raise
        if text:
            return Finding("answers-changed", f"{words}{text}", phase)
        if answer and not first:
            self._answers.keep(self._key, answer)
        elif answer and first and answer.tokens != first.tokens and not self._excused:
            self._excused = True
            near = "a fixed prompt got an answer that differs from the first one, after a near tie"
            self._notice("noticed", f"{near}: rounding explains the difference")
        return None

    def _ask(self, endpoint: Endpoint, timeout_s: float) -> GreedyAnswer | None:
        """The answer; None if other requests were served in the meantime. Raises Degenerate
        (blocking).

        Logits that are not numbers count in any case.
        """
        if not self._key:
            files = model_folder.file_identities(self._inventory.model)
            self._key = canary.key_of(self._plan, self._inventory, files)
        before = self._progress(endpoint)
        path, model = self._api.completions, self._plan.served_name
        body = completion_body(model, canary.PROMPT, canary.TOKENS, logprobs=2)
        try:
            answer = canary.read(completions.complete_as_json(endpoint, path, body, timeout_s))
        except Unanswered as problem:
            if canary.NOT_JSON in str(problem):
                raise Degenerate(NOT_NUMBERS) from problem
            raise
        return answer if canary.was_alone(before, self._progress(endpoint)) else None

    def _progress(self, endpoint: Endpoint) -> ProgressCounters | None:
        answer = http.call(endpoint, self._api.metrics, METRICS_S)
        if answer.status != 200:
            return None
        return self._api.read_metrics(answer.body, None, 0.0).progress
