"""What adapters saw of the world, as plain facts with the time they were seen at.

Every `at` is seconds of one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mark:
    """What one log line says of how far the engine is.

    `phase` is None where a line belongs to no phase of its own, but to whichever runs. A
    `heartbeat` says only that something still waits: it is no progress. `jit` tells of a kernel
    compiled while serving, which may take a step of the engine minutes.
    """

    phase: str | None
    detail: str = ""
    progress: float | None = None
    heartbeat: bool = False
    jit: bool = False


@dataclass(frozen=True)
class LogLine:
    """One line the engine printed, without colours and line ends, and what it says of a start."""

    text: str
    at: float
    mark: Mark | None = None


@dataclass(frozen=True)
class GpuSample:
    """One look at one card: memory in MiB, percent busy, degrees Celsius, watts.

    `throttled` says what slows the card down, such as "heat" or "power"; `fault` what the driver
    says is wrong with it, such as "GPU is lost". Both are empty where all is well. `users` are
    the processes on the card: (pid, MiB).
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

    `pending` is the number of requests being served, None where the engine does not count them;
    `requests_ended` counts those over, finished or not: clients that gave up are among them.
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
    """What `/health` answered: an HTTP status, None for no answer in time."""

    status: int | None
    at: float


@dataclass(frozen=True)
class Unseen:
    """We could not look at the engine, for want of descriptors, threads or memory of our own."""

    at: float


@dataclass(frozen=True)
class ProbeResult:
    """How a completion of our own ended; `text` says why it did not succeed."""

    answered: bool
    text: str
    at: float


@dataclass(frozen=True)
class Tick:
    """Time passed and nothing was seen."""

    at: float


@dataclass(frozen=True)
class ChildExit:
    """How the engine's first process ended; `status` is negative for a signal."""

    status: int
    at: float
