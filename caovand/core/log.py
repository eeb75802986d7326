"""Functions that read an engine's output. Part of its record (`core.engine`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from caovand.core.healing.failure import Finding
from caovand.core.health.observation import Mark


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
    """How an engine's output is read; `module` has this record as `LOG`.

    `plain` splits a printed line into texts; `read` returns a text's progress and figures.
    `announces` is true of a line that reports a failed process; one of the `near` lines before it
    may give the cause. `listening` is the phase whose end means that the HTTP server answers;
    `launches` are phases after whose last line another process is launched and loads the engine.
    `fingerprint` matches lines that no other program begins like that; an engine whose runner is
    another one's program `embeds` that engine's lines.
    `begins` are texts of a start's first lines.
    `kinds` says of each text that the engine prints how far it explains a failure, by its id.
    """

    module: str
    plain: Callable[[str], Sequence[str]]
    read: Callable[[str], tuple[Mark | None, Mapping[str, Any]]]
    announces: Callable[[str], bool]
    near: int
    listening: str
    find_cause: FindCause
    fingerprint: re.Pattern[str]
    embeds: str = ""
    kinds: Mapping[str, str] = field(default_factory=dict)
    begins: tuple[str, ...] = ()
    launches: frozenset[str] = frozenset()
