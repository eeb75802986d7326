"""Write the history in a separate thread, so that a slow, full or broken disk blocks nothing else.

The loop hands over rows without waiting. Up to BACKLOG rows that cannot be written yet are kept;
beyond that, the oldest are lost and counted.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from caovand.adapters import history
from caovand.adapters.files import directories
from caovand.adapters.files.state_file import UNREADABLE_SUFFIX
from caovand.adapters.history import UnreadableHistory
from caovand.adapters.system import wall_clock
from caovand.core import limits
from caovand.core.figures.minute import HistoryRow
from caovand.core.problem import Problem

BACKLOG = 2_000
RETRY_S = 15.0
PRUNE_S = 3600.0
HUNG_S = 30.0
WITHOUT_HISTORY = "until then metrics are shown and served, but not kept"


class HistoryWriter:
    """Stores rows in `path` for `days`; `problem` says why it cannot store them now, None if it
    can.

    `notice` is called from the thread.
    """

    def __init__(self, path: Path, days: int, notice: Callable[[str], None]) -> None:
        self.path = path
        self.lost = 0
        self._days, self._notice = days, notice
        self._rows: deque[HistoryRow] = deque()
        self._lock = threading.Condition()
        self._failed: Problem | None = None
        self._busy_since: float | None = None
        self._stopping = False
        self._link: sqlite3.Connection | None = None
        self._pruned_at = float("-inf")
        self._thread: threading.Thread | None = None

    @property
    def problem(self) -> Problem | None:
        """Why nothing can be written at the moment; None if it can."""
        since = self._busy_since
        if since is not None and time.monotonic() - since > HUNG_S:
            return self._cannot("its disk has not answered for half a minute", "check that disk")
        return self._failed

    def put(self, *rows: HistoryRow) -> None:
        """Hand over rows; never waits."""
        with self._lock:
            self._rows.extend(rows)
            while len(self._rows) > BACKLOG:
                self._rows.popleft()
                self.lost += 1
            self._lock.notify()
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="history", daemon=True)
            try:
                thread.start()
            except RuntimeError as problem:  # the next rows try again
                self._failed = self._cannot(
                    "a thread cannot be started", limits.limit_reached(problem)
                )
            else:
                self._thread = thread

    def stop(self, timeout_s: float) -> None:
        """Write the remaining rows and stop (blocking)."""
        with self._lock:
            self._stopping = True
            self._lock.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._rows and not self._stopping:
                    self._lock.wait()
                rows = list(self._rows)
            self._busy_since = time.monotonic()
            written = not rows or self._write(rows)
            self._busy_since = None
            with self._lock:
                # In the meantime the oldest may have been dropped, and new ones added at the end.
                for row in rows if written else ():
                    if self._rows and self._rows[0] is row:
                        self._rows.popleft()
                if self._stopping and (not self._rows or not written):
                    break
                if not written:
                    self._lock.wait_for(lambda: self._stopping, RETRY_S)
        if self._link is not None:
            self._link.close()

    def _write(self, rows: list[HistoryRow], *, again: bool = True) -> bool:
        """Write the rows; return whether they are on disk. An unusable file is replaced once."""
        try:
            if self._link is None:
                self._link = history.open_to_write(self.path)
            history.write(self._link, rows)
            if time.monotonic() - self._pruned_at >= PRUNE_S:
                history.prune(self._link, wall_clock.now(), self._days)
                self._pruned_at = time.monotonic()
        except UnreadableHistory as problem:
            return self._replace_file(str(problem)) and again and self._write(rows, again=False)
        except Exception as problem:  # no bug here may end the thread
            if history.damaged(problem):
                return (
                    self._replace_file("the file is damaged")
                    and again
                    and self._write(rows, again=False)
                )
            self._close()
            self._failed = self._cannot(str(problem) or type(problem).__name__, self._remedy())
            return False
        self._failed = None
        return True

    def _close(self) -> None:
        if self._link is not None:
            with contextlib.suppress(sqlite3.Error):
                self._link.close()
        self._link = None

    def _replace_file(self, reason: str) -> bool:
        """Move the file aside, so that the next attempt creates another; return whether that
        worked."""
        self._close()
        try:
            history.set_aside(self.path)
        except OSError as problem:
            fact = f"{reason}, and cannot be renamed: {problem.strerror}"
            self._failed = self._cannot(fact, f"delete {self.path}")
            return False
        moved = f"moved to {self.path.name}{UNREADABLE_SUFFIX}, starting with a new file"
        self._notice(f"cannot use {self.path}: {reason}; {moved}")
        return True

    def _remedy(self) -> str:
        folder = self.path.parent
        return directories.remedy(folder, directories.unwritable_errno(folder))

    def _cannot(self, fact: str, remedy: str) -> Problem:
        return Problem(f"write {self.path}", fact, f"{remedy}; {WITHOUT_HISTORY}")
