"""The clients' work during a soak: each task follows from the seed and its number alone."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum


class TaskKind(str, Enum):
    """A kind of task for a client."""

    CHAT = "chat"
    """A conversation of several turns, each of which sends the whole history."""
    SHORT = "short"
    LONG = "long"
    LEFT = "left"
    """The client disconnects in the middle of an answer."""
    CONSTRAINED = "constrained"
    """The answer must be JSON that matches a schema."""
    KNOWN = "known"
    """A prompt with a known answer, under load."""


SHARES = {
    TaskKind.CHAT: 0.30,
    TaskKind.SHORT: 0.30,
    TaskKind.LONG: 0.10,
    TaskKind.LEFT: 0.10,
    TaskKind.CONSTRAINED: 0.10,
    TaskKind.KNOWN: 0.10,
}
MAX_TURNS = 5
MAX_PAUSE_S = 2.0
PAUSE_SHARE = 0.4
"""Share of tasks after which the client pauses."""
WHOLE_SHARE = 0.25
"""Share of answers that are not streamed."""
SAMPLED_SHARE = 0.3
"""Share of answers that are sampled; the others are greedy."""
TEMPERATURE = 0.8


@dataclass(frozen=True)
class Limits:
    """Token counts of a short prompt, the longest prompt and an answer; and the number of known
    prompts."""

    short: int
    long: int
    answer: int
    known: int
    constrained: bool
    """Whether the engine can constrain answers to a schema."""


@dataclass(frozen=True)
class ClientTask:
    """A client's next task, and its pause afterwards.

    `left_after` is the number of pieces after which the client disconnects, 0 if it stays. `known`
    is the index of the known prompt.
    """

    number: int
    kind: TaskKind
    prompt_tokens: int
    answer_tokens: int
    turns: int
    streamed: bool
    temperature: float
    left_after: int
    known: int
    pause_s: float


def task_for(seed: int, number: int, limits: Limits) -> ClientTask:
    """Task `number`, from 0; each kind comes once before chance decides."""
    kinds = [kind for kind in SHARES if limits.constrained or kind is not TaskKind.CONSTRAINED]

    def draw(what: str) -> float:
        return draw_of(f"{seed} {number} {what}")

    kind = kinds[number] if number < len(kinds) else _choose(kinds, draw("kind"))
    # The longest comes early, so that its memory counts as warm-up.
    share = 1.0 if number < len(kinds) else draw("length")
    low, high = (
        (limits.short, limits.long) if kind is TaskKind.LONG else (limits.short // 4, limits.short)
    )
    answer = max(int(limits.answer * (0.25 + 0.75 * draw("answer"))), 4)
    return ClientTask(
        number=number,
        kind=kind,
        prompt_tokens=max(int(low + (high - low) * share), 16),
        answer_tokens=answer,
        turns=2 + int(draw("turns") * (MAX_TURNS - 1)) if kind is TaskKind.CHAT else 1,
        streamed=kind is TaskKind.LEFT or draw("streamed") >= WHOLE_SHARE,
        temperature=TEMPERATURE if draw("sampled") < SAMPLED_SHARE else 0.0,
        left_after=1 + int(draw("left") * answer / 2) if kind is TaskKind.LEFT else 0,
        known=int(draw("known") * limits.known),
        pause_s=round(MAX_PAUSE_S * draw("pause"), 3) if draw("rests") < PAUSE_SHARE else 0.0,
    )


def _choose(kinds: list[TaskKind], place: float) -> TaskKind:
    left = place * sum(SHARES[kind] for kind in kinds)
    for kind in kinds[:-1]:
        left -= SHARES[kind]
        if left < 0:
            return kind
    return kinds[-1]


def draw_of(text: str) -> float:
    """A pseudo-random number in [0, 1) from a text, stable across machines and Python versions."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48
