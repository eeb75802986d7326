"""What a check of a soak concludes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar


class Outcome(str, Enum):
    """`UNKNOWN` is what could not be watched, or not for long enough to be judged."""

    PASSED = "passed"
    FAILED = "failed"
    NOTED = "noted"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Check:
    """One thing that was watched, and one sentence about it."""

    name: str
    outcome: Outcome
    text: str


class OfOneEngine(Protocol):
    """Something seen of one engine's life."""

    @property
    def at_s(self) -> float: ...

    @property
    def generation(self) -> int: ...


One = TypeVar("One", bound=OfOneEngine)


def settled(found: Iterable[One], seconds: float, warm_up: float) -> list[One]:
    """What was seen of the engine that was seen most, without its first part.

    The first part is this share of `seconds`, from the beginning or from that engine's start.
    """
    lives: dict[int, list[One]] = {}
    for one in found:
        lives.setdefault(one.generation, []).append(one)
    longest = max(lives.values(), key=len, default=[])
    return [one for one in longest if one.at_s >= longest[0].at_s + warm_up * seconds]
