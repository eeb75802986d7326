"""What status answers, and what `caovanctl top` and the page show, side by side while an engine
lives.

All ask the daemon, no two at the same moment, and a busy machine holds each up: so they agree if
the screen goes through the same in the same order, and misses nothing that lasted. Of the page it
is the stream that its script draws; tests/page/browser has the drawing.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from caovand.cli.common.errors import CommandError
from tests.daemon_process import Daemon
from tests.patience import until
from tests.terminal import Terminal

EVERY_S = 0.5
LASTING_S = 10.0
"""How long something must last to be on a screen that is drawn once a second: vLLM starves both."""
STATE = re.compile(r"^\W*([A-Z]{4,}) for ", re.M)
EDGE = re.compile(r"\b([A-Z]{4,}) -> ([A-Z]{4,})\b")
Row = tuple[float, tuple[Any, ...]]


def told(status: Mapping[str, Any]) -> tuple[Any, ...]:
    """What of a status document all must agree on."""
    return status["state"], status["mode"], status["mtp"], status["restarts"]


class Screens:
    """Watches a daemon, whose page is at the address `page`, by all three until it is closed."""

    def __init__(self, one: Daemon, page: str) -> None:
        environ = {**one.environ, "TERM": "xterm"}
        self._terminal = Terminal([*one.caovanctl, "top"], environ, one.folder, size=(120, 40))
        self._one, self._page, self._closing = one, page, threading.Event()
        self.answered: list[Row] = []
        self.shown: list[Row] = []
        self.streamed: list[Row] = []
        self._readers = [
            threading.Thread(target=read, daemon=True) for read in (self._read, self._read_page)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        while not self._closing.wait(EVERY_S):
            with contextlib.suppress(CommandError):
                self.answered.append((time.monotonic(), told(self._one.status())))
            if found := STATE.search(self._terminal.screen):
                self.shown.append((time.monotonic(), (found[1],)))

    def _read_page(self) -> None:
        while not self._closing.wait(EVERY_S):
            with contextlib.suppress(OSError):  # the page begins after the daemon
                for status in self._statuses():
                    self.streamed.append((time.monotonic(), told(status)))
                    if self._closing.is_set():
                        return

    def _statuses(self) -> Iterator[dict[str, Any]]:
        """The status documents of the page's stream, as they come."""
        kind = b""
        with urllib.request.urlopen(f"{self._page}/api/live", timeout=60) as stream:
            for line in stream:
                if line.startswith(b"event: "):
                    kind = line[7:].strip()
                elif kind == b"status" and line.startswith(b"data: "):
                    yield json.loads(line[6:])

    def close(self, last: str) -> None:
        """Wait until all have this state, and read no more."""
        every = (self.answered, self.shown, self.streamed)
        try:
            until(lambda: all(rows and rows[-1][1][0] == last for rows in every), f"{last} on all")
        finally:
            self._closing.set()
            self._terminal.press(b"q")
            self._terminal.until_ended()
            self._terminal.close()
            for reader in self._readers:
                reader.join()

    def disagreement(self) -> str:
        """How they differ; empty where they do not."""
        states = [(at, row[:1]) for at, row in self.answered]
        passed = [state for edge in EDGE.findall(self._one.whole_log()) for state in edge]
        return differ("top", self.shown, states, passed) or differ(
            "page", self.streamed, self.answered, passed
        )


def differ(who: str, shown: list[Row], answered: list[Row], passed: list[str]) -> str:
    """How what this screen showed differs from what status answered.

    Both are asked now and then, and either may miss what is soon over: what did not last need
    only be among the states that the daemon `passed` through.
    """
    showed, true = steps(shown), steps(answered)
    lasting = [step for step, lasted in true if lasted > LASTING_S]
    seen = [step for step, lasted in showed if lasted > LASTING_S]
    states = [state for state, _ in groupby(step[0] for step, _ in showed)]
    if (
        within(lasting, [step for step, _ in showed])
        and within(seen, [step for step, _ in true])
        and within(states, passed)
    ):
        return ""
    return f"{who} showed {showed}, status answered {true}, the daemon passed {passed}"


def steps(rows: list[Row]) -> list[tuple[tuple[Any, ...], float]]:
    """What was read, readings alike in a row as one, and for how many seconds each was."""
    begun = [(step, next(alike)[0]) for step, alike in groupby(rows, key=lambda row: row[1])]
    ends = [at for _, at in begun[1:]] + [rows[-1][0] if rows else 0.0]
    return [(step, end - at) for (step, at), end in zip(begun, ends, strict=True)]


def within(some: Sequence[Any], all_: Sequence[Any]) -> bool:
    """Whether `some` are among `all_` in this order."""
    rest = iter(all_)
    return all(step in rest for step in some)
