"""Shared by the slots of one daemon: folders, cards, the kernel log, events."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from caovand import __version__
from caovand.adapters.child import Engines
from caovand.adapters.files.directories import Directories
from caovand.adapters.log import Echo
from caovand.adapters.privileges import engine_user
from caovand.core.reporting.status import DaemonFacts
from caovand.daemon.cards import Cards
from caovand.daemon.kernel import KernelLines
from caovand.daemon.keys import Keys
from caovand.daemon.records.history import History
from caovand.daemon.records.unwritten import Unwritten
from caovand.daemon.shortage import Shortage
from caovand.daemon.tasks import Tasks


class Publish(Protocol):
    """Publishes and logs an event of the slot `name`; "" for the daemon itself."""

    def __call__(self, name: str, kind: str, text: str, **data: Any) -> None: ...


class Changes:
    """Wakes waiters when a slot has changed: `show` is called, then `event` is set and replaced."""

    def __init__(self, show: Callable[[], None]) -> None:
        self.event = asyncio.Event()
        self._show = show

    def wake(self) -> None:
        """Wake all waiters."""
        self._show()
        self.event.set()
        self.event = asyncio.Event()


@dataclass(frozen=True)
class Shared:
    """The parts of a daemon that all slots use; `publish` publishes events."""

    config_path: Path
    directories: Directories
    environ: Mapping[str, str]
    log: Any
    echo: Echo
    publish: Publish
    changes: Changes
    tasks: Tasks
    shortage: Shortage
    unwritten: Unwritten
    kernel: KernelLines
    cards: Cards
    engines: Engines
    history: History
    keys: Keys
    all_reduce: asyncio.Lock
    """The lock for checking all-reduce, one slot at a time."""
    several: bool
    """Whether the daemon has more than one slot: its output then names them."""

    def label(self, name: str) -> str:
        """Prefix for messages of the slot `name`; "" if it is the only one."""
        return f"{name}: " if self.several else ""

    def describe(self) -> DaemonFacts:
        """Describe the daemon for its status."""
        user = engine_user.current()
        return DaemonFacts(
            version=__version__,
            pid=os.getpid(),
            config=str(self.config_path),
            cache=str(self.directories.cache),
            engine_user=user.name if user else "",
            own_user=engine_user.why_none(),
        )

    def warnings(self) -> tuple[str, ...]:
        """The daemon's shortages, such as disk space; an empty string means no shortage."""
        return (self.shortage.text, *self.unwritten.texts.values(), self.history.text)

    def attempt(self, doing: str, work: Awaitable[None]) -> None:
        """Start recurring work; if resources are short, it waits for its next turn."""

        async def attempted() -> None:
            try:
                await work
            except Exception as problem:
                if not self.shortage.covers(doing, problem):
                    raise

        self.tasks.begin(attempted())


def now() -> float:
    """Time for snapshots and events."""
    return time.monotonic()
