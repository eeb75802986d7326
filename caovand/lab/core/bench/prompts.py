"""Prompts of real text: passages in a random order from a seed, without repetition within a prompt.

Every prompt begins with unique words, so that no prefix cache contains its first block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

from caovand.core.problem import ProblemError

MIN_PASSAGE = 600  # characters: shorter paragraphs are joined with the next
CHARACTERS_PER_TOKEN = 3.0  # initial guess for the search for a length; does not affect results
TRIES = 12
LENGTH_TOLERANCE = 0.01  # acceptable relative deviation from the requested length

TokenCounter = Callable[[str], int]


class TooLittleText(ProblemError):
    """A prompt would need more text than available."""


def passages(texts: Iterable[str]) -> tuple[str, ...]:
    """Split the texts at empty lines."""
    parts: list[str] = []
    for text in texts:
        begun: list[str] = []
        for paragraph in text.strip().split("\n\n"):
            begun.append(paragraph)
            if sum(map(len, begun)) >= MIN_PASSAGE:
                parts.append("\n\n".join(begun))
                begun = []
        if begun:
            parts.append("\n\n".join(begun))
    return tuple(parts)


def prompt(known: Sequence[str], salt: str, seed: int, number: int) -> str:
    """Prompt `number` at full length; shorter prompts are prefixes of it."""
    order = sorted(known, key=lambda passage: _draw(f"{seed} {number} {passage}"))
    return f"{salt}-{number}: notes to read and to continue.\n\n" + "\n\n".join(order)


def _draw(text: str) -> bytes:
    """A sort key that is stable across machines and Python versions."""
    return hashlib.sha256(text.encode()).digest()


def fit(text: str, tokens: int, count: TokenCounter) -> tuple[str, int]:
    """Cut `text` to about `tokens` tokens, never more; return it with its count.

    `count` queries the engine. The search narrows an interval of lengths in characters, guessing by
    the observed density.
    """
    low, low_count = 0, 0
    high = len(text) + 1
    at = min(int(tokens * CHARACTERS_PER_TOKEN), len(text))
    for _ in range(TRIES):
        counted = count(text[:at])
        if counted <= tokens:
            low, low_count = at, counted
            if counted >= tokens * (1 - LENGTH_TOLERANCE):
                break
            if at == len(text):
                raise TooLittleText(
                    f"make a prompt of {tokens:,} tokens",
                    f"all texts together have only {counted:,}",
                    "choose shorter --prompts",
                )
        else:
            high = at
        guess = int(at * tokens * (1 - LENGTH_TOLERANCE / 4) / max(counted, 1))
        if not low < guess < high:
            guess = (low + high) // 2
        if guess in (low, high):
            break
        at = min(guess, len(text))
    if not low_count:
        raise TooLittleText(
            f"make a prompt of {tokens:,} tokens",
            "its unique beginning alone is longer",
            "choose longer --prompts",
        )
    return text[:low], low_count
