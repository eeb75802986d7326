"""Clean up after a slot's earlier engine: its processes, found by its ledgers, and its files."""

from __future__ import annotations

import os
from collections.abc import Callable

from caovand.adapters.child import end_orphans, for_people
from caovand.adapters.system.processes import engine_cgroup, former_cgroup
from caovand.core.facts.ownership import Process
from caovand.core.slot import MAIN_SLOT
from caovand.daemon.shared import Shared
from caovand.daemon.stale_files import StaleFileCleaner
from caovand.daemon.start import inspection
from caovand.preparation import memories


class EarlierEngine:
    """The last engine of the slot `name`; `notice` reports what was killed or survives.

    The next engine runs in `cgroup`, is recorded in `ledger`, and `files` removes its stale files.
    """

    def __init__(self, name: str, shared: Shared, notice: Callable[[str, str], None]) -> None:
        places = shared.directories
        self.cgroup = engine_cgroup(os.environ, name)
        former = former_cgroup(self.cgroup) if name == MAIN_SLOT else None
        self._ledgers = memories.ledgers(places.state, name)
        self.ledger = self._ledgers[0]
        self.files = StaleFileCleaner(places, name, notice)
        groups = tuple(group for group in (self.cgroup, former) if group)
        self._orphans = self.files.take_over, groups, shared.engines
        self._notice = notice

    async def clear(self) -> None:
        """End its processes; raises inspection.StartObstacle if one outlives KILL."""
        ended: list[Process] = []
        for ledger in self._ledgers:
            ended += await inspection.end_orphans(ledger, *self._orphans)
        if ended:
            self._notice("noticed", f"killed orphans of an earlier engine: {for_people(ended)}")
        await self.files.begin()

    async def end(self) -> tuple[Process, ...]:
        """End its processes, and return those that outlived KILL."""
        results = [await end_orphans(ledger, *self._orphans) for ledger in self._ledgers]
        return tuple(process for _, left in results for process in left)
