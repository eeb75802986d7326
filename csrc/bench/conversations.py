"""Conversations that begin, continue, branch and repeat at every block boundary.

Each prompt or answer ends within two tokens of a multiple of the block size. The engine determines
the answer, and the next turn starts with it. This module uses neither torch nor vLLM.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

OFFSETS = range(-2, 3)
BLOCKS = 6
"""The length of the longest prompt in blocks, excluding the tokens after its last boundary."""
ANSWERS = (3, 6, 9, 14)


@dataclass
class Turn:
    """A prompt, the length of its answer and, once generated, the answer."""

    name: str
    kind: str
    prompt: list[int]
    length: int
    answer: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.answer


class Engine(Protocol):
    def add(self, turn: Turn) -> None: ...

    def step(self) -> list[tuple[str, list[int]]]:
        """The names and answers of the turns that finished in a step."""


class Conversations:
    """Generates turns; at any time, a conversation has at most one turn in progress."""

    def __init__(self, block: int, vocab: int, seed: int) -> None:
        self._block, self._vocab = block, vocab
        self._draw = random.Random(seed)
        self._histories: list[list[int]] = []
        self._busy: dict[str, int] = {}
        self._number = 0
        self._borders = itertools.cycle(self._shuffled_borders())
        self._due: deque[tuple[str, int, int]] = deque()

    def _shuffled_borders(self) -> list[tuple[int, int, bool]]:
        """(blocks, offset, whether the prompt ends there or the answer)."""
        borders = list(itertools.product(range(1, BLOCKS + 1), OFFSETS, (True, False)))
        self._draw.shuffle(borders)
        return borders

    def opening(self) -> Turn:
        """The case that exposed the first defect: a prompt of 15/8 blocks whose answer crosses the
        second boundary.

        With blocks of 400 tokens, these are 750 and 105 tokens.
        """
        turn = self._turn("opening", [], 15 * self._block // 8, 21 * self._block // 80)
        self._due.append(("opening goes on", self._busy[turn.name], 40))
        return turn

    def next(self) -> Turn:
        if self._due and self._due[0][1] not in self._busy.values():
            kind, conversation, more = self._due.popleft()
            history = self._histories[conversation]
            return self._turn(kind, history, len(history) + more, ANSWERS[0], conversation)
        blocks, offset, of_prompt = next(self._borders)
        answer = self._draw.choice(ANSWERS)
        length = blocks * self._block + offset - (0 if of_prompt else answer)
        free = [n for n in range(len(self._histories)) if n not in self._busy.values()]
        kind = self._draw.choices(("begin", "go on", "branch", "repeat"), (1, 6, 4, 1))[0]
        longer = [n for n in free if len(self._histories[n]) > self._block // 2]
        shorter = [n for n in free if self._block // 2 < len(self._histories[n]) < length]
        if kind == "go on" and shorter:
            some = self._draw.choices(shorter, k=3)
            conversation = max(some, key=lambda n: len(self._histories[n]))
            return self._turn(kind, self._histories[conversation], length, answer, conversation)
        if kind == "branch" and longer:
            history = self._histories[self._draw.choice(longer)]
            return self._turn(kind, history[: self._parting(history, length)], length, answer)
        if kind == "repeat" and longer:
            history = self._histories[self._draw.choice(longer)]
            return self._turn(kind, history, min(len(history), length), answer)
        return self._turn("begin", [], length, answer)

    def _parting(self, history: Sequence[int], length: int) -> int:
        """Where a branch diverges: anywhere, or near a boundary."""
        last = min(len(history), length) - 1
        if self._draw.random() < 0.3 or last <= self._block:
            return self._draw.randint(1, last)
        border = self._draw.randint(1, last // self._block) * self._block
        return min(border + self._draw.choice(OFFSETS), last)

    def _turn(
        self,
        kind: str,
        history: Sequence[int],
        length: int,
        answer: int,
        conversation: int | None = None,
    ) -> Turn:
        if conversation is None:
            conversation = len(self._histories)
            self._histories.append([])
        more = [self._draw.randrange(self._vocab) for _ in range(length - len(history))]
        turn = Turn(f"turn{self._number}", kind, [*history, *more][:length], answer)
        self._number += 1
        self._busy[turn.name] = conversation
        return turn

    def answered(self, turn: Turn) -> None:
        self._histories[self._busy.pop(turn.name)] = turn.tokens


def drive(engine: Engine, talk: Conversations, turns: int, at_a_time: int) -> Iterator[Turn]:
    """Run `turns` turns, up to `at_a_time` concurrently; a new one starts as soon as one ends."""
    asked, waiting = 0, {}
    while asked < turns or waiting:
        while asked < turns and len(waiting) < at_a_time:
            turn = talk.next() if asked else talk.opening()
            waiting[turn.name] = turn
            engine.add(turn)
            asked += 1
        for name, answer in engine.step():
            turn = waiting.pop(name)
            turn.answer = answer
            talk.answered(turn)
            yield turn
