"""Interpret an engine's output. Part of its record (`core.engine.record`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from caovand.core.healing.failure import Finding
from caovand.core.health.observation import LogMark

StartStep = Literal["plan", "launch", "load", "prepare", "prove"]
"""The steps of a start, in order and in the words shown to people for every engine."""
TRANSPORT = "nccl_"
"""Prefix of values such as nccl_0_1: the transport of NCCL from rank 0 to rank 1 on another
node.
"""


@dataclass(frozen=True)
class Phase:
    """A phase visible in an engine's log: its name in marks, its title and its step."""

    name: str
    title: str
    step: StartStep


@dataclass(frozen=True)
class PhaseTime:
    """A phase and its duration; None if the log has no timestamps for it."""

    phase: str
    seconds: float | None


@dataclass(frozen=True)
class Explanation:
    """The contents of a log. `reached` is "serving" or the phase in which the log ends."""

    engine_version: str | None
    phases: tuple[PhaseTime, ...]
    reached: str
    finding: Finding | None
    advice: tuple[str, ...]
    figures: Mapping[str, Any]
    configured: Mapping[str, Any]
    harmless: Mapping[str, int]


class FindCause(Protocol):
    """Finds the first cause in the log of a phase; `alive` means that the engine is still
    running.
    """

    def __call__(
        self, lines: Sequence[str], phase: str, *, alive: bool = False
    ) -> Finding | None: ...


@dataclass(frozen=True, kw_only=True)
class OwnRows:
    """Ids of the rows that only one engine's table has, by what they mean for its server."""

    prefix: str = ""
    """The prefix of all of them; "" without one."""
    requests: tuple[str, ...] = ()
    """Wrong requests, and answers of a model: the server goes on."""
    commands: frozenset[str] = frozenset()
    """A command or request that failed alone, unless it was a plan's own model."""
    client: tuple[str, ...] = ()
    """Messages of its own client that found no server."""


@dataclass(frozen=True, kw_only=True)
class Log:
    """Reads an engine's output."""

    module: str
    """Module that exports this record as `LOG`, for the process that reads causes."""
    plain: Callable[[str], Sequence[str]]
    """Splits a printed line into its texts."""
    phases: tuple[Phase, ...]
    """The phases that `read` finds."""
    read: Callable[[str], tuple[LogMark | None, Mapping[str, Any]]]
    """Returns the progress that a text shows, and the values in it by name."""
    announces: Callable[[str], bool]
    """Whether a line reports a failed process; one of the `near` lines before it may say why."""
    near: int
    listening: str
    """The phase that ends when the HTTP server answers."""
    find_cause: FindCause
    fingerprint: re.Pattern[str]
    """Matches the start of lines that no other program prints."""
    embeds: str = ""
    """The engine whose program this one runs as its runner, and whose lines appear in this log."""
    named: re.Pattern[str]
    """Finds the engine's names in paths, commands, packages and prose."""
    sources: re.Pattern[str] | None = None
    """Matches lines with its own files or routes, which identify it if nothing else does."""
    own_rows: OwnRows = OwnRows()
    linux_only: bool = False
    """Whether its packages need Linux."""
    on_systems: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Advice in place of Linux's commands, by a row's id, or ":" and a busy port, and by "windows"
    or "mac"."""
    begins: tuple[str, ...] = ()
    """Texts in the first lines of a start."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """The power of each of the engine's texts to explain a failure, by the text's id."""
    error: Callable[[str], str] | None = None
    """Formats a text as the engine's logger prints errors, to recognise what other libraries print
    through it."""
    launches: frozenset[str] = frozenset()
    """Phases whose last line precedes the launch of another process, which loads the engine."""
