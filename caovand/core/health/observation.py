"""Observations by the adapters: plain facts with timestamps.

Every `at` is in seconds of the same monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LogMark:
    """Progress that one log line shows.

    `phase` is None if the line may belong to any phase. A `heartbeat` only shows that something
    still waits: it is no progress. `jit` is a kernel compiled while serving, which can delay an
    engine step by minutes.
    """

    phase: str | None
    detail: str = ""
    progress: float | None = None
    heartbeat: bool = False
    jit: bool = False


@dataclass(frozen=True)
class LogLine:
    """A line of the engine's output, without colours and line end, and its mark."""

    text: str
    at: float
    mark: LogMark | None = None


THROTTLES = (
    "its power limit",
    "hardware protection",
    "heat",
    "heat (hardware)",
    "the power supply",
)
"""Causes of throttling; idling and the operator's own limits are excluded."""


@dataclass(frozen=True)
class GpuSample:
    """A sample of one card: memory in MiB, utilisation in percent, degrees Celsius, watts, MHz.

    `throttled` names the causes of throttling, joined by ", "; `fault` is the driver's error, such
    as "GPU is lost". Both are normally empty. `users` are the processes on the card: (pid, MiB).
    Energy in joules and NVLink bytes are totals since the driver was loaded; rates are relative to
    the previous sample. None is unknown.
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
class ProgressCounters:
    """Counters whose movement proves that the engine works, from /metrics and /load.

    `pending` is the number of requests in progress, None if the engine does not count them;
    `requests_ended` counts all that ended, including those whose clients gave up.
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
    """Response of `/health`: its HTTP status, None if none came in time."""

    status: int | None
    at: float


@dataclass(frozen=True)
class NotObserved:
    """The daemon could not query the engine: it ran out of descriptors, threads or memory
    itself."""

    at: float


@dataclass(frozen=True)
class ProbeResult:
    """The outcome of a test completion; `text` says why it failed."""

    answered: bool
    text: str
    at: float


@dataclass(frozen=True)
class WatchTick:
    """Time passed without an observation."""

    at: float


@dataclass(frozen=True)
class ChildExit:
    """The exit of the engine's first process; `status` is negative for a signal."""

    status: int
    at: float
