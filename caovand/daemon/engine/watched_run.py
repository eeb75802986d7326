"""The interface between Watching and the run of one engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from caovand.adapters.engine.pump import Ring
from caovand.adapters.network.http import Endpoint
from caovand.core.config.schema import WatchSection
from caovand.core.engine.record import Engine
from caovand.core.figures.counters import Reading
from caovand.core.lifecycle.events import LifecycleEvent
from caovand.core.plan import Plan
from caovand.daemon.engine.canary import Canary


@dataclass(frozen=True)
class WatchedRun:
    """The run of one engine; `apply` takes events, `notice` publishes texts.

    `cgroup` is the engine's own, if any. `on_reading` takes each scrape of its metrics. `canary`
    compares its answers. `occupied` is as in Causes. An engine without `answers` has no clients
    here and receives no requests: another node knows whether it serves.
    """

    engine: Engine
    generation: int
    plan: Plan
    endpoint: Endpoint
    section: WatchSection
    ring: Ring
    apply: Callable[[LifecycleEvent], None]
    notice: Callable[[str, str], None]
    cgroup: Path | None = None
    on_reading: Callable[[Reading], None] = lambda _: None
    canary: Canary | None = None
    occupied: Callable[[], Awaitable[str]] | None = None
    answers: bool = True
    at_engine: Callable[[], int] = lambda: 0
    """Number of the gateway's requests that the engine works on."""
