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


THROTTLES = (
    "its power limit",
    "hardware protection",
    "heat",
    "heat (hardware)",
    "the power supply",
)
"""What slows cards down, idling and the operator's own limits left out."""


@dataclass(frozen=True)
class GpuSample:
    """One sample of one card: memory in MiB, percent busy, degrees Celsius, watts, MHz.

    `throttled` names what slows the card down, several joined by ", "; `fault` is the driver's
    error, such as "GPU is lost". Both are normally empty. `users` are the processes on the card:
    (pid, MiB). Energy in joules and NVLink's bytes are totals since the driver was loaded, its
    rates those since the sample before. None is unknown.
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
    power_limit_w: float | None = None
    energy_j: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    pcie_sent_bytes_per_s: float | None = None
    pcie_received_bytes_per_s: float | None = None
    nvlink_sent_bytes: int | None = None
    nvlink_received_bytes: int | None = None
    nvlink_sent_bytes_per_s: float | None = None
    nvlink_received_bytes_per_s: float | None = None


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
class NotObserved:
    """We could not ask the engine: we ran out of descriptors, threads or memory ourselves."""

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
