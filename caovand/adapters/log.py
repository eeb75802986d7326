"""The daemon's log: for people on a terminal, with priorities for journald, JSON elsewhere.

One thread prints everything, the engine's lines between the daemon's own. If the reader of our
output is slow or gone (Ctrl-S on a terminal), neither engine nor daemon waits for it: lines are
dropped and counted.

Both contain untrusted text: process names, HTTP answers, requests that the engine logs. The pump
strips escape sequences from the engine's lines; every other control character is escaped, since a
terminal obeys some of them (U+009B, backspaces) and journalctl hides a line that has any.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, MutableMapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TextIO, cast

from caovand.core.printable import printable


def _without_rich(name: str) -> ModuleType:
    """Hide rich, which structlog imports if it is installed, for tracebacks that are not printed: 5
    MB."""
    loaded: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]
    if "rich" in loaded:
        return importlib.import_module(name)
    loaded["rich"] = None  # makes the import fail
    try:
        return importlib.import_module(name)
    finally:
        del loaded["rich"]


if TYPE_CHECKING:
    import structlog
else:
    structlog = _without_rich("structlog")

LEVELS = ("debug", "info", "warning", "error")
PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3}
ECHO_BYTES = 32 << 20
LINE_BYTES = 100  # memory of a queued line, without its text
ECHO_BATCH = 500

LogEvent = MutableMapping[str, Any]


def choose_format(wanted: str | None, environ: Mapping[str, str], terminal: bool) -> str:
    """console, journald or json: as requested, else chosen by the type of output."""
    if wanted:
        return wanted
    if environ.get("JOURNAL_STREAM"):
        return "journald"
    return "console" if terminal else "json"


def configure(level: str, kind: str, stream: TextIO | Echo) -> Any:
    """Set up structlog for `kind` and return the daemon's logger."""
    least = LEVELS.index(level)

    def leave_out(_: Any, method: str, event: LogEvent) -> LogEvent:
        if LEVELS.index(method) < least:
            raise structlog.DropEvent
        event["level"] = method
        return event

    stamp = structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
    chains: dict[str, list[Any]] = {
        "journald": [_journald],
        "json": [
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        "console": [
            stamp,
            _written_out,
            # 0: no padding; the parameter's name differs between versions, its position does not.
            structlog.dev.ConsoleRenderer(
                0, colors=stream.isatty() and "NO_COLOR" not in os.environ
            ),
        ],
    }
    structlog.configure(
        processors=[leave_out, *chains[kind]],
        wrapper_class=structlog.BoundLogger,
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, stream)),
        cache_logger_on_first_use=False,
    )
    return structlog.get_logger()


def _written_out(_: Any, method: str, event: LogEvent) -> LogEvent:
    return {n: printable(v) if isinstance(v, str) else v for n, v in event.items()}


def _journald(_: Any, method: str, event: LogEvent) -> str:
    event.pop("level")
    text = str(event.pop("event"))
    extra = " ".join(f"{name}={value}" for name, value in event.items())
    line = f"<{PRIORITIES[method]}>{text}{' ' + extra if extra else ''}"
    return printable(line.replace("\n", " | "))


def engine_line(kind: str, engine: str, line: str) -> str:
    """One line of the engine named `engine` in the format `kind`, without a newline."""
    if kind == "console":
        return f"  {engine} | {printable(line)}"
    level = _level(line)
    if kind == "journald":
        return f"<{PRIORITIES[level]}>{engine}: {printable(line)}"
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    fields = {"event": line, "logger": engine, "level": level, "timestamp": stamp}
    return json.dumps(fields, ensure_ascii=not line.isprintable())


def _level(line: str) -> str:
    head = line[:60]
    if "ERROR" in head or "CRITICAL" in head:
        return "error"
    return "warning" if "WARNING" in head else "info"


class Echo:
    """Print the engine's lines, and everything written to this file object, from a thread.

    `left_out` counts dropped lines; their number is printed as soon as printing resumes.
    """

    def __init__(self, kind: str, stream: TextIO) -> None:
        self._kind, self._stream = kind, stream
        self._lines: deque[tuple[str, str]] = deque()  # engine (the daemon itself: "") and text
        self._part = ""
        self._size, self._counting = 0, threading.Lock()  # bytes in _lines
        self._more, self._idle = threading.Event(), threading.Event()
        self._idle.set()
        self.left_out = self._reported = 0
        threading.Thread(target=self._run, name="log-echo", daemon=True).start()

    def add(self, engine: str, lines: Sequence[str]) -> None:
        """Queue lines of the engine with this name; never waits."""
        self._take(engine, lines)

    def write(self, text: str) -> int:
        """Queue the daemon's own text, line by line; called from one thread."""
        *lines, self._part = (self._part + text).split("\n")
        self._take("", lines)
        return len(text)

    def flush(self) -> None:
        """Do nothing: part of the file protocol."""

    def isatty(self) -> bool:
        """Whether the output is a terminal."""
        return self._stream.isatty()

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything is printed; return whether that succeeded."""
        return self._idle.wait(timeout_s)

    def _take(self, engine: str, lines: Sequence[str]) -> None:
        self._idle.clear()
        with self._counting:
            for line in lines:
                size = len(line) + LINE_BYTES
                if self._size + size > ECHO_BYTES:
                    self.left_out += 1
                else:
                    self._size += size
                    self._lines.append((engine, line))
        self._more.set()

    def _run(self) -> None:
        while True:
            self._more.wait()
            self._more.clear()
            while self._lines:
                batch = self._batch()
                text = "\n".join(
                    engine_line(self._kind, engine, line) if engine else line
                    for engine, line in batch
                )
                missed = self.left_out
                if missed > self._reported:
                    note = f"({missed - self._reported} lines dropped: the reader was too slow)"
                    text += "\n" + engine_line(self._kind, "caovand", note)
                try:
                    self._stream.write(text + "\n")
                    self._stream.flush()
                    self._reported = missed
                except (OSError, ValueError):
                    with self._counting:
                        self.left_out += len(batch)
            self._idle.set()
            if self._lines:
                self._idle.clear()

    def _batch(self) -> list[tuple[str, str]]:
        count = min(len(self._lines), ECHO_BATCH)
        batch = [self._lines.popleft() for _ in range(count)]
        with self._counting:
            self._size -= sum(len(line) + LINE_BYTES for _, line in batch)
        return batch
