"""The clients of a soak: threads that work while the gate is open."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Sequence

from caovand.adapters.network.http import Unanswered
from caovand.core.health.canary import Degenerate
from caovand.lab.core.bench.prompts import TooLittleText
from caovand.lab.core.soak.schedule import ClientTask, Limits, TaskKind, draw_of, task_for
from caovand.lab.core.soak.seen import AnswerComparison, AnswerTimes
from caovand.lab.core.soak.verdict import EMPTY
from caovand.lab.soak.asking import KNOWN_TOKENS, KnownPrompt, Requester, SoakReply
from caovand.lab.soak.ledger import SoakLedger

PAUSE_AFTER_FAILURE_S = 1.0
TURN_CHARS = 200
"""Characters that a client adds to a conversation per turn."""
BYTES_PER_TOKEN = 4
"""Bytes in the longest character, and so its maximum tokens: some tokenizers have one per byte."""
MIN_TOKENS = 8
"""Minimum tokens for an answer without any text to count as empty."""
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["prose", "law", "code"]},
        "fiction": {"type": "boolean"},
    },
    "required": ["kind", "fiction"],
    "additionalProperties": False,
}


class SoakClients:
    """`admit` lets clients start tasks, `pause` lets them finish their current one, `end` ends
    them."""

    def __init__(self, asking: Requester, limits: Limits, seed: int, ledger: SoakLedger) -> None:
        self._asking, self._seed, self._ledger = asking, seed, ledger
        self.limits = limits
        self._passages: Sequence[str] = asking.sized.passages
        self._numbers = itertools.count()
        self._gate = threading.Condition()
        self._admits = False
        self._busy = 0
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self.known: Sequence[KnownPrompt] = ()
        self.generation = 0
        self.crash: Exception | None = None

    def start(self, at_once: int) -> None:
        """Start the threads; they wait for the gate."""
        self._threads = [
            threading.Thread(target=self._serve, name=f"client-{n}") for n in range(at_once)
        ]
        for thread in self._threads:
            thread.start()

    def admit(self) -> None:
        """Open the gate."""
        with self._gate:
            self._admits = True
            self._gate.notify_all()

    def pause(self) -> None:
        """Close the gate: clients finish their current work."""
        with self._gate:
            self._admits = False

    def idle(self, limit_s: float) -> bool:
        """Wait until no client has a task, at most `limit_s`; return whether that was reached."""
        with self._gate:
            return self._gate.wait_for(lambda: self._busy == 0, limit_s)

    def end(self) -> None:
        """End all clients and cut off their answers."""
        self._ledger.close()
        self._ended.set()
        self._asking.streams.stop()
        self.admit()
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while not self._ended.is_set():
            with self._gate:
                self._gate.wait_for(lambda: self._admits)
                if self._ended.is_set():
                    return
                self._busy += 1
            pause_s = PAUSE_AFTER_FAILURE_S
            try:
                pause_s = self._next()
            finally:
                with self._gate:
                    self._busy -= 1
                    self._gate.notify_all()
            self._ended.wait(pause_s)

    def _next(self) -> float:
        """Do the next task; return the pause after it."""
        todo = task_for(self._seed, next(self._numbers), self.limits)
        try:
            self._do(todo)
        except Unanswered as problem:
            self._ledger.record_failure(problem)
        except Degenerate as problem:
            self._ledger.record_wrong("degenerate answer", str(problem))
        except TooLittleText as problem:
            self._ledger.record_wrong("no prompt", str(problem))
        except Exception as problem:  # our bug: the main thread raises it
            self.crash = problem
        else:
            return todo.pause_s
        return PAUSE_AFTER_FAILURE_S

    def _do(self, todo: ClientTask) -> None:
        if todo.kind is TaskKind.KNOWN:
            known = self.known[todo.known]
            difference = self._asking.compare(known)
            at_s = round(self._ledger.now(), 3)
            self._ledger.compare(AnswerComparison(at_s, todo.known, False, False, difference))
            self._ledger.answered(todo.kind.value, KNOWN_TOKENS)
            return
        prompt = self._asking.sized.prompt(todo.prompt_tokens, todo.number)
        if todo.kind is TaskKind.CHAT:
            self._chat(todo, prompt)
        elif todo.kind is TaskKind.CONSTRAINED:
            constrained = self._asking.target.api.constrained
            assert constrained is not None
            more = {**constrained(SCHEMA), "ignore_eos": False}
            reply = self._ask(todo, prompt, **more)
            if reply.finish == "stop" and not _of_schema(reply.text):
                self._ledger.record_wrong("not the requested JSON", repr(reply.text[:TURN_CHARS]))
        else:
            reply = self._ask(todo, prompt)
            if todo.kind is TaskKind.SHORT and reply.answered is not None:
                done = reply.answered
                at_s = round(self._ledger.now(), 3)
                pace = AnswerTimes(at_s, self.generation, done.first_token_s, done.token_s)
                self._ledger.pace(pace, alone=False)

    def _chat(self, todo: ClientTask, history: str) -> None:
        for turn in range(todo.turns):
            reply = self._ask(todo, history)
            place = int(draw_of(f"{self._seed} {todo.number} {turn}") * len(self._passages))
            history += f"{reply.text}\n\n{self._passages[place][:TURN_CHARS]}\n\n"
            if not self._admits or not self._fits(history, todo, reply):
                return

    def _fits(self, history: str, todo: ClientTask, last: SoakReply) -> bool:
        """Whether the next turn of a conversation fits the context."""
        target = self._asking.target
        if target.api.tokenize is not None:
            tokens = self._asking.sized.count_tokens(history)
        else:  # tokenizing an answer's text may yield more tokens than were generated
            tokens = last.prompt_tokens + BYTES_PER_TOKEN * (todo.answer_tokens + TURN_CHARS)
        return tokens + todo.answer_tokens < (target.context or self.limits.long)

    def _ask(self, todo: ClientTask, prompt: str, **more: object) -> SoakReply:
        reply = self._asking.ask(
            prompt,
            todo.answer_tokens,
            streamed=todo.streamed,
            leave_after=todo.left_after,
            temperature=todo.temperature,
            **more,
        )
        if reply.tokens >= MIN_TOKENS and not reply.text:
            self._ledger.record_wrong(EMPTY, f"{reply.tokens} tokens without any text")
        self._ledger.answered(todo.kind.value, reply.tokens)
        return reply


def _of_schema(text: str) -> bool:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(document, dict)
        and document.keys() == {"kind", "fiction"}
        and document["kind"] in SCHEMA["properties"]["kind"]["enum"]  # type: ignore[index]
        and isinstance(document["fiction"], bool)
    )
