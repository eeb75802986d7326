"""The trials that workers are ordered to carry out now, and what they report of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping

from caovand.core.cluster.link import Outcome, Trial
from caovand.daemon.cluster.part import Changed

REPORT_S = 60.0
"""How long a worker may take to report: it tries several addresses of a name."""


class Unreported(Exception):
    """Why nothing more is heard of a trial, in words; `mute` is who let the time for it pass."""

    def __init__(self, text: str, *mute: str) -> None:
        super().__init__(text)
        self.mute = frozenset(mute)


class Asked:
    """A trial under way, for the run `boot` of the daemon of the worker `name`."""

    def __init__(self, name: str, boot: str, trial: Trial) -> None:
        self.boot, self.trial = boot, trial
        self._name = name
        self._latest: Outcome | None = None
        self._lost = False
        self._woken = asyncio.Event()

    def hear(self, outcome: Outcome) -> None:
        """Take what the worker reports of it."""
        self._latest = outcome
        self._woken.set()

    def lose(self) -> None:
        """The worker is lost: nobody waits for it any longer."""
        self._lost = True
        self._woken.set()

    async def outcome(self, met: Callable[[Outcome], object] = bool) -> Outcome:
        """The first report that `met` is true of. Raises Unreported."""
        try:
            return await asyncio.wait_for(self._awaited(met), REPORT_S)
        except asyncio.TimeoutError:
            text = f"{self._name} reported nothing for {REPORT_S:.0f} s"
            raise Unreported(text, self._name) from None

    async def _awaited(self, met: Callable[[Outcome], object]) -> Outcome:
        while not self._lost:
            if self._latest is not None and met(self._latest):
                return self._latest
            self._woken.clear()
            await self._woken.wait()
        raise Unreported(f"the daemon of {self._name} ended, or was cut off, while it was tried")


class Asking:
    """All trials under way, one a worker; `changed` wakes what sends the orders."""

    def __init__(self, changed: Changed) -> None:
        self._changed = changed
        self._asked: dict[str, Asked] = {}

    @contextlib.contextmanager
    def ask(self, name: str, boot: str, trial: Trial) -> Iterator[Asked]:
        """Have a worker carry out this trial while inside."""
        asked = self._asked[name] = Asked(name, boot, trial)
        self._changed.wake()
        try:
            yield asked
        finally:
            del self._asked[name]

    def trial(self, name: str) -> Trial | None:
        """What this worker is to try now."""
        asked = self._asked.get(name)
        return asked.trial if asked else None

    def heard(self, name: str, outcome: Outcome | None) -> None:
        """Take a worker's report."""
        asked = self._asked.get(name)
        if asked and outcome and outcome.token == asked.trial.token:
            asked.hear(outcome)

    def keep(self, boots: Mapping[str, str]) -> None:
        """Give up the trials of all workers but these, each with the run of its daemon."""
        for name, asked in self._asked.items():
            if boots.get(name) != asked.boot:
                asked.lose()
