"""What `caovanctl top` shows and what status answers, read side by side while an engine lives.

Both ask the daemon, neither at the same moment, and a busy machine holds either up: so they agree
if the screen goes through the same states in the same order, and misses none that lasted.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from itertools import groupby

from caovand.cli.errors import CommandError
from tests.daemon_process import Daemon
from tests.patience import until
from tests.terminal import Terminal

EVERY_S = 0.5
LASTING_S = 10.0
"""How long a state must last to be on a screen that is drawn once a second: vLLM starves both."""
STATE = re.compile(r"^\W*([A-Z]{4,}) for ", re.M)


class Screens:
    """Watches a daemon by both until it is closed."""

    def __init__(self, one: Daemon) -> None:
        environ = {**one.environ, "TERM": "xterm"}
        self._terminal = Terminal([*one.caovanctl, "top"], environ, one.folder, size=(120, 40))
        self._one, self._closing = one, threading.Event()
        self.answered: list[tuple[float, str]] = []
        self.shown: list[tuple[float, str]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while not self._closing.wait(EVERY_S):
            with contextlib.suppress(CommandError):
                self.answered.append((time.monotonic(), self._one.status()["state"]))
            if found := STATE.search(self._terminal.screen):
                self.shown.append((time.monotonic(), found[1]))

    def close(self, last: str) -> None:
        """Wait until both have this state, and read no more."""
        try:
            until(lambda: self.answered[-1][1] == last == self.shown[-1][1], f"{last} on both")
        finally:
            self._closing.set()
            self._reader.join()
            self._terminal.press(b"q")
            self._terminal.until_ended()
            self._terminal.close()

    def disagreement(self) -> str:
        """How they differ; empty where they do not."""
        shown = [state for state, _ in groupby(self.shown, key=lambda row: row[1])]
        answered = [state for state, _ in groupby(self.answered, key=lambda row: row[1])]
        lasting = [state for state, rows in groupby(self.answered, key=lambda row: row[1])
                   if lasted(list(rows)) > LASTING_S]  # fmt: skip
        if within(lasting, shown) and within(shown, answered):
            return ""
        return f"top showed {shown}, status answered {answered}"


def lasted(rows: list[tuple[float, str]]) -> float:
    """Seconds from the first of these readings to the last."""
    return rows[-1][0] - rows[0][0]


def within(some: list[str], all_: list[str]) -> bool:
    """Whether `some` are among `all_` in this order."""
    rest = iter(all_)
    return all(state in rest for state in some)
