"""Poll the daemon on behalf of all readers of one model, while there are any.

One poll serves everybody: each update goes to all readers, and the latest state is kept for those
who join later.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from caovand.adapters.network.daemon_socket import Unreachable
from caovand.core.problem import ProblemError
from caovand.page.ask import Daemon
from caovand.page.on_cards import on_cards
from caovand.page.reader import Reader, frame

TICK_S = 0.5
STATUS_S = 1.0
RECENT_S = 5.0
CLUSTER_S = 2.0
REQUESTS_S = 2.0
EVENTS = 100
LINES = 200
MAX_LINES_BEHIND = 2000  # lines: a slower reader skips to the latest
VOLATILE_FIELDS = frozenset({"since_s", "last_failure_s", "retry_in_s", "figures", "gpus", "slots"})
"""Parts that differ between polls even if nothing happened."""


class Feed:
    """The live data of one model; "" for the only or the first one.

    `names` says whether readers may know which client sent a request.
    """

    def __init__(self, daemon: Daemon, model: str, *, names: bool) -> None:
        self._daemon, self._model, self._names = daemon, model, names
        self._readers: dict[Reader, asyncio.Event] = {}
        self._task: asyncio.Task[None] | None = None
        self._forget()

    def _forget(self) -> None:
        self._latest: dict[str, bytes] = {}
        self._events: deque[Mapping[str, Any]] = deque(maxlen=EVENTS)
        self._lines: deque[str] = deque(maxlen=LINES)
        self._seq, self._end = 0, -1  # of the log: -1 before the first poll
        self._pid: int | None = None
        self._steady: dict[str, Any] = {}
        self._nodes: Mapping[str, Any] | None = None
        self._requests: Sequence[Mapping[str, Any]] | None = None
        self._status_at = self._recent_at = self._nodes_at = self._requests_at = float("-inf")

    @contextlib.contextmanager
    def reading(self, seen: str) -> Iterator[tuple[Reader, asyncio.Event]]:
        """Register a reader as Reader(seen), with an event that is set when there is news for
        it."""
        reader, news = Reader(seen), asyncio.Event()
        for kind, message in self._latest.items():
            reader.put(kind, message)
        if self._events:
            reader.put_events(self._events)
        if self._end >= 0:
            reader.put_lines(list(self._lines), self._end)
        news.set()
        self._readers[reader] = news
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        try:
            yield reader, news
        finally:
            del self._readers[reader]
            if not self._readers and self._task is not None:
                self._task.cancel()
                self._task = None
                self._forget()

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            try:
                await self._poll(began)
            except ProblemError as problem:
                if isinstance(problem, Unreachable) or "daemon" not in self._latest:
                    data = {"reachable": False, "message": str(problem)}
                    self._send("daemon", frame("daemon", data))
            for news in self._readers.values():
                news.set()
            await asyncio.sleep(max(began + TICK_S - clock(), TICK_S / 2))

    async def _poll(self, now: float) -> None:
        status = await self._daemon.ask("status")
        pid = status["daemon"]["pid"]
        if self._pid not in (None, pid):
            self._seq, self._end = 0, -1
            self._events.clear()
            self._lines.clear()
            for reader in self._readers:
                reader.begin_again()
        if pid != self._pid or "daemon" in self._latest:
            self._send("daemon", frame("daemon", {"reachable": True}))
            del self._latest["daemon"]  # later readers must not assume it
        self._pid = pid
        model = self._model or default_model(status)
        steady = {name: value for name, value in status.items() if name not in VOLATILE_FIELDS}
        if steady != self._steady or now >= self._status_at + STATUS_S:
            self._steady, self._status_at = steady, now
            shown = {**status, "processes": on_cards(status, model)}
            self._send("status", frame("status", shown))
        await self._poll_nodes(model, status.get("cluster"), now)
        if status.get("gateway") and now >= self._requests_at + REQUESTS_S:
            self._requests_at = now
            await self._poll_requests(model)
        await self._poll_events()
        await self._poll_log(model)
        if now >= self._recent_at + RECENT_S:
            self._recent_at = now
            recent = await self._daemon.ask("recent", model)
            self._send("recent", frame("recent", recent))

    async def _poll_nodes(self, model: str, summary: Mapping[str, Any] | None, now: float) -> None:
        """Poll all nodes of a cluster: at once when one of them joins or leaves."""
        if summary and (summary != self._nodes or now >= self._nodes_at + CLUSTER_S):
            self._nodes, self._nodes_at = summary, now
            self._send("cluster", frame("cluster", await self._daemon.ask("cluster", model)))

    async def _poll_requests(self, model: str) -> None:
        requests = (await self._daemon.ask("requests", model))["requests"]
        if not self._names:
            requests = [{**record, "key": ""} for record in requests]
        if requests != self._requests:
            self._requests = requests
            self._send("requests", frame("requests", requests))

    async def _poll_events(self) -> None:
        fresh: deque[Mapping[str, Any]] = deque(maxlen=EVENTS)
        while events := (await self._daemon.ask("events", since=self._seq))["events"]:
            self._seq = events[-1]["seq"]
            fresh.extend(events)
        self._events.extend(fresh)
        if any(event["kind"] == "incident" for event in fresh):
            self._daemon.forget("incidents")  # readers fetch them when notified
        for reader in self._readers if fresh else ():
            reader.put_events(fresh)

    async def _poll_log(self, model: str) -> None:
        range_ = {"lines": LINES} if self._end < 0 else {"since": self._end}
        answer = await self._daemon.ask("logs", model, **range_)
        if answer["end"] - answer["last"] > MAX_LINES_BEHIND:
            answer = await self._daemon.ask("logs", model, lines=LINES)
        if answer["lines"] or self._end < 0:
            self._lines.extend(answer["lines"])
            for reader in self._readers:
                reader.put_lines(answer["lines"], answer["last"])
        self._end = answer["last"]

    def _send(self, kind: str, message: bytes) -> None:
        self._latest[kind] = message
        for reader in self._readers:
            reader.put(kind, message)


def default_model(status: Mapping[str, Any]) -> str:
    """The model meant by default: "" for the only one, else the first by name."""
    names = sorted(slot["name"] for slot in status["slots"])
    return names[0] if len(names) > 1 else ""


class Feeds:
    """The feeds by model, created on demand, for at most `most` readers in total."""

    def __init__(self, daemon: Daemon, most: int, *, names: bool) -> None:
        self._daemon, self._left, self._names = daemon, most, names
        self._feeds: dict[str, Feed] = {}
        self._readers: dict[str, int] = {}

    @contextlib.contextmanager
    def reading(self, model: str, seen: str) -> Iterator[tuple[Reader, asyncio.Event] | None]:
        """Like Feed.reading; None if all seats are taken."""
        if not self._left:
            yield None
            return
        self._left -= 1
        self._readers[model] = self._readers.get(model, 0) + 1
        feed = self._feeds.setdefault(model, Feed(self._daemon, model, names=self._names))
        try:
            with feed.reading(seen) as seat:
                yield seat
        finally:
            self._left += 1
            self._readers[model] -= 1
            if not self._readers[model]:
                del self._readers[model], self._feeds[model]
