"""Outcomes of a soak's checks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar


class Outcome(str, Enum):
    """`UNKNOWN` means not observed, or too briefly to judge."""

    PASSED = "passed"
    FAILED = "failed"
    NOTED = "noted"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class SoakCheck:
    """One watched property, with its outcome in a sentence."""

    name: str
    outcome: Outcome
    text: str


class JudgedEngine(Protocol):
    """An observation from one engine's life."""

    @property
    def at_s(self) -> float: ...

    @property
    def generation(self) -> int: ...


One = TypeVar("One", bound=JudgedEngine)


def settled_samples(samples: Iterable[One], seconds: float, warm_up: float) -> list[One]:
    """Samples of the longest-lived engine, without its warm-up.

    `warm_up` is a share of `seconds`, counted from the start of the soak or of that engine.
    """
    lives: dict[int, list[One]] = {}
    for sample in samples:
        lives.setdefault(sample.generation, []).append(sample)
    longest = max(lives.values(), key=len, default=[])
    return [sample for sample in longest if sample.at_s >= longest[0].at_s + warm_up * seconds]
