"""Collect per-minute metrics and events for the history.

The loop calls it in each iteration; only the writer touches the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from caovand import __version__
from caovand.adapters import history
from caovand.adapters.system import wall_clock
from caovand.core.figures.minute import MINUTE_S, HistoryMark, HistoryRow, Tally, card_minute
from caovand.core.figures.track import Track
from caovand.core.health.observation import GpuSample
from caovand.core.problem import ProblemError
from caovand.daemon.records.history_writer import HistoryWriter

MAX_MARK = 200


class History:
    """`text` says why nothing can be stored at present, else ""; `notice` reports each change."""

    def __init__(
        self,
        folder: Path,
        days: int,
        notice: Callable[[str, str], None],
        clock: Callable[[], float] = wall_clock.now,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.days, self.text = days, ""
        self._notice, self._clock, self._steady = notice, clock, steady
        self._path = folder / history.FILE
        loop = asyncio.get_running_loop()

        def on_loop(text: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(notice, "noticed", text)

        self._writer = HistoryWriter(self._path, days, on_loop) if days else None
        self._tallies: dict[str, Tally] = {}
        self._taken_at: dict[str, float] = {}
        self._tracks: dict[str, Track] = {}
        self._samples: defaultdict[int, list[GpuSample]] = defaultdict(list)
        self._before: dict[int, GpuSample] = {}
        self._begun = int(clock())
        self.mark("", "daemon", f"caovand {__version__} started")

    def mark(self, slot: str, kind: str, text: str) -> None:
        """Record an event of a slot; "" for the daemon."""
        if self._writer is not None:
            self._writer.put(HistoryMark(round(self._clock(), 3), slot, kind, text[:MAX_MARK]))

    def take(self, slot: str, track: Track, serves: bool) -> None:
        """Add a slot's latest reading."""
        if self._writer is None:
            return  # the collected data would never be written
        now = self._steady()
        before, self._taken_at[slot] = self._taken_at.get(slot, now), now
        point = track.recent[-1] if track.last and track.recent else None
        tally = self._tallies.get(slot) or Tally(track.total)
        self._tallies[slot] = tally.add(now - before, serves, point)
        self._tracks[slot] = track

    def take_cards(self, samples: Iterable[GpuSample]) -> None:
        """Add the latest samples of all cards."""
        for sample in samples if self._writer else ():
            mine = self._samples[sample.index]
            before = mine[-1] if mine else self._before.get(sample.index)
            if before is None or before.at < sample.at:
                mine.append(sample)

    def turn(self) -> None:
        """Write the past minute, and report whether that works."""
        if self._writer is None:
            return
        now = self._clock()
        if now // MINUTE_S != self._begun // MINUTE_S:
            self._writer.put(*self._minute())
            self._begun = int(now)
        problem = self._writer.problem
        text = str(problem) if problem else ""
        if bool(text) != bool(self.text):
            lost = f"; its oldest {self._writer.lost} rows are lost"
            again = f"{self._path} is writable again{lost if self._writer.lost else ''}"
            self._notice("noticed", text or again)
        self.text = text

    def close(self, timeout_s: float) -> None:
        """Write the current minute, and wait (blocking) until everything is written."""
        if self._writer is not None:
            self._writer.put(*self._minute())
            self._writer.stop(timeout_s)

    async def read(
        self, slot: str, seconds: float, points: int, until: float | None = None
    ) -> dict[str, Any]:
        """Read the `seconds` before `until`, or before now; raises ProblemError."""
        if not self.days:
            fact = "[history] days is 0"
            remedy = "set it to a number of days, then: sudo systemctl restart caovan"
            raise ProblemError("show a history", fact, remedy)
        end = int(self._clock() if until is None else until) + 1
        since = int(end - seconds)
        try:
            document = await asyncio.to_thread(history.read, self._path, slot, since, end, points)
        except sqlite3.Error as problem:
            raise ProblemError(f"read {self._path}", str(problem), "try again") from problem
        return {"since": since, "until": end, "days": self.days, "problem": self.text, **document}

    def _minute(self) -> list[HistoryRow]:
        rows: list[HistoryRow] = []
        for slot, tally in self._tallies.items():
            total = self._tracks[slot].total
            rows.append(tally.minute(slot, self._begun, total))
            self._tallies[slot] = Tally(total, latest_at=tally.latest_at)
        for index, samples in self._samples.items():
            minute = card_minute(samples, self._before.get(index), self._begun)
            rows += [minute] if minute else []
            self._before.update({index: samples[-1]} if samples else {})
        self._samples.clear()
        return rows
