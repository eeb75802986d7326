"""Show the progress of a long step: a moving bar on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TextIO

from caovand.cli.common.printing import raw_stream, takes_unicode
from caovand.core.printable import one_line, printable
from caovand.core.units import MIB

_PLAIN_STEPS = 10
QUIET_S = 8.0
_BAR, _MIN_COLUMNS = 12, 80


class Screen:
    """Prints lines and progress. Without a terminal, it prints a line for each tenth of the work.

    `moves` says that it is a terminal, where progress may be updated at will. Callers that wait
    without progress call `alive` regularly, which prints a sign of life after a silence.
    """

    def __init__(self, out: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        self._out, self._now = raw_stream(out), now
        self._progress_at = self._printed_at = now()
        self.moves = self._out.isatty()
        self._moving = False
        self._last_tenth: tuple[int, int] | None = None

    def say(self, line: str) -> None:
        """Print a permanent line."""
        self.clear()
        print(printable(line), file=self._out, flush=True)
        self._progress_at = self._printed_at = self._now()

    def progress(self, done: int, total: int, what: str) -> None:
        """Show `done` of `total`: bytes if large, otherwise a count."""
        percent = 100 * done // total if total else 100
        amount = (
            f"{done // MIB} of {total // MIB} MiB" if total >= 10 * MIB else f"{done} of {total}"
        )
        self.line(percent, f"{amount}  {one_line(what)}", key=total)

    def line(self, percent: int, text: str, key: int = 0) -> None:
        """Show a percentage of the step `key`, and a text."""
        if self.moves:
            self._printed_at = self._now()
            self.clear()
            columns = shutil.get_terminal_size().columns
            bar = self._bar(percent) if columns >= _MIN_COLUMNS else ""
            self._out.write(f"      {percent:3d} %  {bar}{text}"[: columns - 1])
            self._out.flush()
            self._moving = True
            return
        tenth = (key, percent * _PLAIN_STEPS // 100)
        if tenth != self._last_tenth:
            self._last_tenth = tenth
            self._printed_at = self._now()
            print(f"      {percent:3d} %  {text}", file=self._out, flush=True)

    def alive(self) -> None:
        """Print the step's duration so far, if nothing has been printed for some seconds."""
        now = self._now()
        if now - self._printed_at < QUIET_S:
            return
        self._printed_at = now
        text = f"      ... {now - self._progress_at:.0f} s"
        if not self.moves:
            print(text, file=self._out, flush=True)
        elif not self._moving:
            self._out.write(f"\r{text}")
            self._out.flush()

    def _bar(self, percent: int) -> str:
        full, rest = "━─" if takes_unicode(self._out) else "#."
        done = percent * _BAR // 100
        return f"{full * done}{rest * (_BAR - done)}  "

    def clear(self) -> None:
        """Remove the bar so that other output can follow."""
        if self._moving:
            self._out.write("\r\033[K")
            self._out.flush()
            self._moving = False
