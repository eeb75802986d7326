"""The requests of a soak, and the prompts with known answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caovand.adapters.network.http import Unanswered, count_in
from caovand.core.health import canary
from caovand.core.health.canary import GreedyAnswer
from caovand.lab.bench.sized import SizedPrompts
from caovand.lab.bench.target import Target
from caovand.lab.core.bench.record import TimedAnswer
from caovand.lab.core.soak import known
from caovand.lab.core.soak.known import Difference
from caovand.lab.core.soak.schedule import Limits
from caovand.lab.streamed import Streams, choice

SILENCE_S = 600.0
"""Maximum silence of an engine; by then the daemon has killed one that hangs."""
KNOWN_TOKENS = 24
KNOWN_TIMES = 4
"""Requests of each known prompt at the start: first without a prefix cache hit, then with one."""
KNOWN_NUMBER = 1_000_000
"""Number of the first known prompt, beyond those of all other prompts."""


@dataclass(frozen=True)
class SoakReply:
    """An answer; `answered` has its times if it was streamed to its end."""

    text: str
    finish: str
    prompt_tokens: int
    tokens: int
    answered: TimedAnswer | None


@dataclass(frozen=True)
class KnownPrompt:
    """A prompt and its greedy answers; `repeats` if all but the first were equal at the start."""

    prompt: str
    answers: tuple[GreedyAnswer, ...]
    repeats: bool


class Requester:
    """Sends requests to one engine; thread-safe."""

    def __init__(self, target: Target, passages: Sequence[str], salt: str, seed: int) -> None:
        self.target = target
        self.streams = Streams(target.endpoint, target.api.completions, target.model, SILENCE_S)
        self.sized = SizedPrompts(target, self.streams, passages, salt, seed)

    def ask(
        self, prompt: str, tokens: int, *, streamed: bool, leave_after: int = 0, **more: Any
    ) -> SoakReply:
        """Request one answer; raises Unanswered."""
        if streamed:
            reply = self.streams.ask(prompt, tokens, leave_after, **more)
            done = reply.answered
            counts = (done.prompt_tokens, done.tokens) if done else (0, 0)
            return SoakReply(reply.text, reply.finish, *counts, done)
        document = self._request_whole(prompt, tokens, **more)
        read = count_in(document, "usage", "prompt_tokens")
        made = count_in(document, "usage", "completion_tokens")
        if read is None or not made:
            raise Unanswered("an answer without its tokens or their count")
        return SoakReply(*choice(document), read, made, None)

    def greedy(self, prompt: str) -> GreedyAnswer:
        """Request the greedy answer to a known prompt; raises Unanswered and canary.Degenerate."""
        api = self.target.api
        document = self._request_whole(
            prompt, KNOWN_TOKENS, **({"logprobs": 2} if api.logprobs else {})
        )
        answer = canary.read(json.dumps(document), KNOWN_TOKENS) if api.logprobs else None
        return answer or known.as_words(choice(document)[0])

    def learn(self, limits: Limits) -> list[KnownPrompt]:
        """Request all known prompts; raises like `greedy`."""
        return [self._learn(number, length) for number, length in enumerate(lengths(limits))]

    def _learn(self, number: int, length: int) -> KnownPrompt:
        prompt = self.sized.prompt(length, KNOWN_NUMBER + number)
        answers = [self.greedy(prompt) for _ in range(KNOWN_TIMES)]
        return KnownPrompt(prompt, tuple(dict.fromkeys(answers)), len(set(answers[1:])) == 1)

    def compare(self, prompt: KnownPrompt) -> Difference | None:
        """Request a known prompt again and compare the answer; raises like `greedy`."""
        return known.difference(prompt.answers, self.greedy(prompt.prompt))

    def _request_whole(self, prompt: str, tokens: int, **more: Any) -> Mapping[str, Any]:
        try:
            document = json.loads(self.streams.complete(prompt, tokens, **more))
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise Unanswered("the answer is not a JSON object")
        return document


def lengths(limits: Limits) -> tuple[int, ...]:
    """Token counts of the known prompts: one below a cache block, and longer ones."""
    return (16, limits.short // 2, limits.short, min(4 * limits.short, limits.long))[: limits.known]
