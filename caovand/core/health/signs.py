"""Signs that the detector derives from observations of a child."""

from __future__ import annotations

from dataclasses import dataclass

from caovand.core.healing.failure import Finding


@dataclass(frozen=True)
class Sign:
    """A sign observed at `at`."""

    at: float


@dataclass(frozen=True)
class Advanced(Sign):
    """The start progressed, or a heartbeat showed that it is waiting."""

    phase: str
    progress: float | None
    detail: str
    heartbeat: bool


@dataclass(frozen=True)
class Probe(Sign):
    """Send a completion and observe its ProbeResult within `timeout_s`; `idle` if no request
    runs."""

    timeout_s: float
    reason: str
    idle: bool = False


@dataclass(frozen=True)
class Cleared(Sign):
    """A suspicion was refuted."""

    reason: str


@dataclass(frozen=True)
class Broken(Sign):
    """The child is unusable."""

    finding: Finding


@dataclass(frozen=True)
class Noticed(Sign):
    """Worth reporting, without action: slow, throttled, or back to normal."""

    text: str
