"""The state that a slot keeps for its next start, in its state folder."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from caovand.adapters.files.config_file import ModeMemory
from caovand.adapters.incidents import Incidents
from caovand.core.config.schema import Mode
from caovand.core.engine.record import Engine
from caovand.core.lifecycle.events import LifecycleEvent
from caovand.core.lifecycle.state import Snapshot
from caovand.core.reporting import starts
from caovand.core.slot import MAIN_SLOT
from caovand.daemon.engine.canary import FirstAnswers
from caovand.daemon.engine.watching import Watching
from caovand.daemon.shared import Shared
from caovand.daemon.start.degraded_plan import PlanMemory
from caovand.daemon.start.inspection import PreparedStart
from caovand.daemon.start.starts import Starts
from caovand.preparation import memories


class SlotMemory:
    """The state files of the slot `name`; those of an earlier version are migrated first."""

    def __init__(
        self, name: str, engine: Engine, shared: Shared, notice: Callable[..., None]
    ) -> None:
        self.made = False
        """Whether the folder exists: a full disk may delay its creation."""
        self._name, self._state, self._log = name, shared.directories.state, shared.log
        self._notice = notice
        for text in self._restore(engine):
            notice("noticed", text)
        self.path: Callable[[str], Path] = partial(memories.find, self._state, name=name)
        self.modes = ModeMemory(self.path(memories.MODE))
        self.incidents = Incidents(self.path(memories.INCIDENTS))
        self.plans = PlanMemory(self.path(memories.DEGRADED_PLAN), engine.healing)
        self.starts = Starts(self.path(memories.STARTS), engine.log.launches)
        self.answers = FirstAnswers(self.path(memories.ANSWERS), notice)

    def _restore(self, engine: Engine) -> list[str]:
        """Migrate files of an earlier version and move unusable ones aside; return messages."""
        texts, folders = list[str](), [memories.folder(self._state, self._name)]
        if self._name == MAIN_SLOT:
            texts += memories.take_over(self._state)
            folders.append(self._state)
        with contextlib.suppress(OSError):
            self.make_folder()
        for folder in folders:
            texts += memories.set_aside(folder, engine.healing)
        return texts

    def make_folder(self) -> None:
        """Create the folder. Raises OSError, for example if the disk is full."""
        if not self.made:
            memories.make(self._state, self._name)
            self.made = True

    async def try_folder(self) -> None:
        """Create the folder if the disk permits it now."""
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self.make_folder)

    def follow_start(
        self, before: Snapshot, after: Snapshot, event: LifecycleEvent, watching: Watching | None
    ) -> None:
        """Time a start; once it serves, report and store the durations of its phases."""
        try:
            if not self.starts.follow(before, after, event, watching.reported if watching else {}):
                return
            assert self.starts.latest is not None
            sentence = starts.start_text(*self.starts.latest)
            self._notice("start", sentence, start=self.starts.describe())
            self.make_folder()
            self.starts.remember()
        except OSError as problem:
            self._log.warning(f"cannot save the duration of this start: {problem}")

    def keep_plan(self, snapshot: Snapshot, prepared: PreparedStart | None, mode: Mode) -> None:
        """Store a plan that has served stably for the next start, if the ladder had to degrade
        it."""
        if snapshot.plan is None or prepared is None:
            return
        try:
            self.plans.served_stably(snapshot.plan, prepared.fingerprint, mode)
        except OSError as problem:
            self._log.warning(f"cannot save the plan that served: {problem}")
