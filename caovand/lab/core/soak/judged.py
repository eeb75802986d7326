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


def settled_samples(found: Iterable[One], seconds: float, warm_up: float) -> list[One]:
    """Samples of the longest-lived engine, without its warm-up.

    `warm_up` is a share of `seconds`, counted from the start of the soak or of that engine.
    """
    lives: dict[int, list[One]] = {}
    for one in found:
        lives.setdefault(one.generation, []).append(one)
    longest = max(lives.values(), key=len, default=[])
    return [one for one in longest if one.at_s >= longest[0].at_s + warm_up * seconds]
