"""Observations by the adapters: plain facts, each with its time.

Every `at` is seconds of one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mark:
    """The engine's progress according to one log line.

    `phase` is None if the line belongs to whichever phase runs. A `heartbeat` only shows that
    something still waits: it is not progress. `jit` is a kernel compiled while serving, which may
    delay a step of the engine by minutes.
    """

    phase: str | None
    detail: str = ""
    progress: float | None = None
    heartbeat: bool = False
    jit: bool = False


@dataclass(frozen=True)
class LogLine:
    """One line of the engine, without colours and line ends, and its mark in a start."""

    text: str
    at: float
    mark: Mark | None = None


@dataclass(frozen=True)
class GpuSample:
    """One sample of one card: memory in MiB, percent busy, degrees Celsius, watts.

    `throttled` names what slows the card down, such as "heat" or "power"; `fault` is the driver's
    error, such as "GPU is lost". Both are normally empty. `users` are the processes on the card:
    (pid, MiB).
    """

    index: int
    used_mib: int
    total_mib: int
    utilization: int | None
    temperature: int | None
    power_w: float | None
    at: float
    throttled: str = ""
    fault: str = ""
    users: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Progress:
    """Counters whose movement proves that the engine works; read from /metrics and /load.

    `pending` is the number of requests being served, None if the engine does not count them;
    `requests_ended` counts all that ended, those of clients that gave up included.
    """

    generation_tokens: float
    prompt_tokens: float
    requests_finished: float
    iterations: float
    kv_cache_usage: float
    running: float
    waiting: float
    drafted_tokens: float
    accepted_tokens: float
    pending: int | None
    at: float
    requests_ended: float = 0.0


@dataclass(frozen=True)
class Health:
    """The answer of `/health`: an HTTP status, None for no answer in time."""

    status: int | None
    at: float


@dataclass(frozen=True)
class Unseen:
    """We could not read the engine, for lack of descriptors, threads or memory of our own."""

    at: float


@dataclass(frozen=True)
class ProbeResult:
    """The end of a test completion; `text` says why it failed."""

    answered: bool
    text: str
    at: float


@dataclass(frozen=True)
class Tick:
    """Time passed without an observation."""

    at: float


@dataclass(frozen=True)
class ChildExit:
    """How the engine's first process ended; `status` is negative for a signal."""

    status: int
    at: float
