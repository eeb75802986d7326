"""Data that one live reader has not been sent yet, bounded however slow the reader is.

A newer status replaces an older one, and old log lines give way to new ones. A reader that would
miss an event is `lost`: it must reconnect with Last-Event-ID.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

MAX_EVENTS = 200
MAX_LINES = 500


def frame(kind: str, data: Any, mark: str = "") -> bytes:
    """One server-sent event; `mark` is its id, which returns as Last-Event-ID."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    line = f"id: {mark}\n" if mark else ""
    return f"{line}event: {kind}\ndata: {text}\n\n".encode("utf-8", "replace")


def mark_of(event: Mapping[str, Any]) -> str:
    """A unique id of an event, since each daemon counts from 1."""
    return f"{event['seq']}@{event['at']}"


class Reader:
    """A reader that has seen the events up to the one with this mark, "" if there is none."""

    def __init__(self, seen: str = "") -> None:
        self.lost = False
        self._seen, self._since = seen, 0
        self._latest: dict[str, bytes] = {}
        self._events: deque[bytes] = deque()
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._end: int | None = None

    def put(self, kind: str, message: bytes) -> None:
        """Queue a message that replaces the previous one of its kind."""
        self._latest[kind] = message

    def put_events(self, events: Collection[Mapping[str, Any]]) -> None:
        """Queue the newest events; all are new to a reader from an earlier daemon."""
        if self._seen:
            self._since = next(
                (event["seq"] for event in events if mark_of(event) == self._seen), 0
            )
            self._seen = ""
        for event in events:
            if event["seq"] > self._since:
                self._since = event["seq"]
                self._events.append(frame("event", event, mark_of(event)))
        self.lost = self.lost or len(self._events) > MAX_EVENTS

    def put_lines(self, lines: Sequence[str], end: int) -> None:
        """Queue lines of the log; `end` is the number of the last one."""
        self._lines.extend(lines)
        self._end = end

    def begin_again(self) -> None:
        """Start over with another daemon, which counts its events from 1."""
        self._since = 0

    def take(self) -> bytes:
        """Everything to send now."""
        parts = [*self._latest.values(), *self._events]
        if self._end is not None:
            parts.append(frame("log", {"lines": list(self._lines), "end": self._end}))
        self._latest.clear()
        self._events.clear()
        self._lines.clear()
        self._end = None
        return b"".join(parts)
