"""Outcomes of a soak's checks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar


class Outcome(str, Enum):
    """`UNKNOWN` means not observed, or not for long enough to judge."""

    PASSED = "passed"
    FAILED = "failed"
    NOTED = "noted"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Check:
    """One thing that was watched, with its outcome in a sentence."""

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


def settled_samples(found: Iterable[One], seconds: float, warm_up: float) -> list[One]:
    """The samples of the longest-lived engine, without its warm-up.

    The warm-up is this share of `seconds`, from the beginning or from that engine's start.
    """
    lives: dict[int, list[One]] = {}
    for one in found:
        lives.setdefault(one.generation, []).append(one)
    longest = max(lives.values(), key=len, default=[])
    return [one for one in longest if one.at_s >= longest[0].at_s + warm_up * seconds]
