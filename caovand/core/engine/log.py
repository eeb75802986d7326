"""Functions that read an engine's output. Part of its record (`core.engine.record`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from caovand.core.healing.failure import Finding
from caovand.core.health.observation import Mark

Step = Literal["plan", "launch", "load", "prepare", "prove"]
"""What a start does, in the order and the words that people see for every engine."""
TRANSPORT = "nccl_"
"""The prefix of figures such as nccl_0_1: what NCCL uses from rank 0 to rank 1 of another node."""


@dataclass(frozen=True)
class Phase:
    """A phase that an engine's log shows: its name in marks, its title, the step it belongs to."""

    name: str
    title: str
    step: Step


@dataclass(frozen=True)
class PhaseTime:
    """A phase and how long it ran; None if the log has no times for it."""

    phase: str
    seconds: float | None


@dataclass(frozen=True)
class Explanation:
    """The contents of a log. `reached` is "serving" or the phase in which it ends."""

    engine_version: str | None
    phases: tuple[PhaseTime, ...]
    reached: str
    finding: Finding | None
    advice: tuple[str, ...]
    figures: Mapping[str, Any]
    configured: Mapping[str, Any]
    harmless: Mapping[str, int]


class FindCause(Protocol):
    """Finds the first cause in a log, in a phase; `alive` if the engine has not ended."""

    def __call__(
        self, lines: Sequence[str], phase: str, *, alive: bool = False
    ) -> Finding | None: ...


@dataclass(frozen=True, kw_only=True)
class Log:
    """How an engine's output is read."""

    module: str
    """The module that has this record as `LOG`, for the process that reads causes."""
    plain: Callable[[str], Sequence[str]]
    """Splits a printed line into texts."""
    phases: tuple[Phase, ...]
    """The phases that `read` finds."""
    read: Callable[[str], tuple[Mark | None, Mapping[str, Any]]]
    """A text's progress, and the figures in it by name."""
    announces: Callable[[str], bool]
    """Whether a line reports a failed process; one of the `near` lines before it may say why."""
    near: int
    listening: str
    """The phase at whose end the HTTP server answers."""
    find_cause: FindCause
    fingerprint: re.Pattern[str]
    """Matches the beginnings of lines that no other program prints."""
    embeds: str = ""
    """The engine whose program is this one's runner, and whose lines are in this log."""
    begins: tuple[str, ...] = ()
    """Texts of a start's first lines."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """How far each text of the engine explains a failure, by its id."""
    error: Callable[[str], str] | None = None
    """A text as its logger prints an error, to read what others print of it."""
    launches: frozenset[str] = frozenset()
    """Phases after whose last line another process is launched and loads the engine."""
