"""Observations of a soak. Every `at_s` is in seconds since its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from caovand.lab.core.soak.known import Difference


@dataclass(frozen=True)
class SoakSample:
    """One sample of the processes and the daemon's metrics; None is unknown.

    Memory is in MiB; `files` are open descriptors, `shared` is all of /dev/shm. `throttled` names
    why one of the engine's cards is throttled.
    """

    at_s: float
    generation: int
    engine_mib: float | None = None
    engine_files: float | None = None
    gpu_mib: float | None = None
    daemon_mib: float | None = None
    daemon_files: float | None = None
    shared_mib: float | None = None
    throttled: str = ""
    drafts: float = 0.0
    accepted: float = 0.0


@dataclass(frozen=True)
class AnswerTimes:
    """Times of one answer: to its first token, and per later token."""

    at_s: float
    generation: int
    first_token_s: float
    token_s: float | None


@dataclass(frozen=True)
class AnswerComparison:
    """An answer to a known prompt; `alone` if no other request was running.

    `again` if the previous request had the same prompt, so that it is completely cached.
    """

    at_s: float
    prompt: int
    alone: bool
    again: bool
    difference: Difference | None


@dataclass(frozen=True)
class Mishap:
    """A failed request, or an event of the daemon of this kind."""

    at_s: float
    kind: str
    text: str


@dataclass(frozen=True)
class SoakRecord:
    """A whole soak of `seconds`; `rungs` were taken during it.

    `paces` are of single requests, always of the same lengths; `loaded` are of short prompts under
    load.
    """

    seconds: float
    samples: tuple[SoakSample, ...] = ()
    paces: tuple[AnswerTimes, ...] = ()
    loaded: tuple[AnswerTimes, ...] = ()
    compared: tuple[AnswerComparison, ...] = ()
    errors: tuple[Mishap, ...] = ()
    events: tuple[Mishap, ...] = ()
    rungs: tuple[str, ...] = ()
    requests: Mapping[str, int] = field(default_factory=dict)
    tokens: int = 0
