"""Show how a long step gets on: one bar that moves on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TextIO

from caovand.cli.common.printing import raw_stream, takes_unicode
from caovand.core.printable import one_line, printable

_MIB = 2**20
_PLAIN_STEPS = 10
QUIET_S = 8.0
_BAR, _MIN_COLUMNS = 12, 80


class Screen:
    """Prints lines and progress. Not on a terminal: a line for every tenth that is done.

    `moves`: whether it is one, where progress may be shown as often as there is any. Who waits
    without any calls `alive` now and then; it prints a sign of life when all has been quiet.
    """

    def __init__(self, out: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        self._out, self._now = raw_stream(out), now
        self._said_at = self._printed_at = now()
        self.moves = self._out.isatty()
        self._moving = False
        self._last_tenth: tuple[int, int] | None = None

    def say(self, line: str) -> None:
        """Print a line that stays."""
        self.clear()
        print(printable(line), file=self._out, flush=True)
        self._said_at = self._printed_at = self._now()

    def progress(self, done: int, total: int, what: str) -> None:
        """Show `done` of `total`, which are bytes if large, else a count."""
        percent = 100 * done // total if total else 100
        amount = (
            f"{done // _MIB} of {total // _MIB} MiB" if total >= 10 * _MIB else f"{done} of {total}"
        )
        self.line(percent, f"{amount}  {one_line(what)}", key=total)

    def line(self, percent: int, text: str, key: int = 0) -> None:
        """Show how much is done of the step `key`, and a text."""
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
        """Print how long the step has taken if nothing has been printed for some seconds."""
        now = self._now()
        if now - self._printed_at < QUIET_S:
            return
        self._printed_at = now
        text = f"      ... {now - self._said_at:.0f} s"
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
        """Take the bar away, so that others may print."""
        if self._moving:
            self._out.write("\r\033[K")
            self._out.flush()
            self._moving = False
