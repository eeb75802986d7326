"""Show how a long step gets on: one moving line on a terminal, a few plain ones elsewhere."""

from __future__ import annotations

import shutil
from typing import TextIO

from caovand.cli.printing import raw
from caovand.core.printable import one_line, printable

_MIB = 2**20
_PLAIN_STEPS = 10


class Screen:
    """Prints lines and progress. Not on a terminal: a line for every tenth that is done."""

    def __init__(self, out: TextIO) -> None:
        self._out = raw(out)
        self._terminal = self._out.isatty()
        self._moving = False
        self._last_tenth: tuple[int, int] | None = None

    def say(self, line: str) -> None:
        """Print a line that stays."""
        self._clear()
        print(printable(line), file=self._out, flush=True)

    def progress(self, done: int, total: int, what: str) -> None:
        """Show `done` of `total`, which are bytes if large, else a count."""
        percent = 100 * done // total if total else 100
        amount = (
            f"{done // _MIB} of {total // _MIB} MiB" if total >= 10 * _MIB else f"{done} of {total}"
        )
        self.line(percent, f"{amount}  {one_line(what)}", key=total)

    def line(self, percent: int, text: str, key: int = 0) -> None:
        """Show how much is done of the step `key`, and a text."""
        line = f"      {percent:3d} %  {text}"
        if self._terminal:
            self._clear()
            width = shutil.get_terminal_size().columns - 1
            self._out.write(line[:width])
            self._out.flush()
            self._moving = True
            return
        tenth = (key, percent * _PLAIN_STEPS // 100)
        if tenth != self._last_tenth:
            self._last_tenth = tenth
            print(line, file=self._out, flush=True)

    def _clear(self) -> None:
        if self._moving:
            self._out.write("\r\033[K")
            self._moving = False
