"""Exchange news between the desk and the daemon.

One request waits at the daemon until its answer has changed; another reports the desk's news. If
the daemon does not answer, nothing changes: its engine may still be serving.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from caovand.adapters.network import daemon_socket
from caovand.core.gateway.events import EngineState
from caovand.core.problem import ProblemError
from caovand.core.reporting.wire import Request
from caovand.gateway.desk import Desk
from caovand.gateway.facts import Facts, read

WAIT_S = 20.0  # the daemon answers after this time at the latest
ANSWER_S = WAIT_S + 10.0
RETRY_S = 0.5
REPORT_S = 0.25  # minimum time between two reports
USAGE_S = 1.0
MAX_ROWS = 20  # of usage: a request to the daemon is one short line
MAX_RECORDS = 6


ListedModels = Callable[[Facts], Awaitable[tuple[str, ...]]]


class Link:
    """The link to the daemon whose socket `gateway` is at `path`."""

    def __init__(self, path: Path, clock: Callable[[], float], max_body_bytes: int) -> None:
        self._path, self._clock, self._max_body_bytes = path, clock, max_body_bytes
        self._seq, self._learned = 0, 0
        self._learning: asyncio.Future[None] | None = None  # the loop does not keep tasks alive

    async def first(self) -> Facts:
        """The daemon's first facts; waits until the daemon answers."""
        while True:
            if facts := await self._ask_for_facts():
                return facts

    async def run(self, desk: Desk, listed: ListedModels) -> None:
        """Exchange news as long as the loop runs; `listed` are an engine's own names."""
        await asyncio.gather(self._hear(desk, listed), self._report(desk), self._report_usage(desk))

    async def _hear(self, desk: Desk, listed: ListedModels) -> None:
        while True:
            engine = desk.facts.engine
            if engine.state is EngineState.SERVING and engine.generation != self._learned:
                self._learned = engine.generation
                self._learning = asyncio.ensure_future(self._learn_names(desk, listed))
            if facts := await self._ask_for_facts():
                desk.hear(facts)

    async def _learn_names(self, desk: Desk, listed: ListedModels) -> None:
        desk.learn(await listed(desk.facts))

    async def _ask_for_facts(self) -> Facts | None:
        facts = await self._ask("gateway", since=self._seq, wait_s=WAIT_S)
        if facts is None:
            return None
        self._seq = facts["seq"]
        return read(facts, self._clock(), self._max_body_bytes)

    async def _report(self, desk: Desk) -> None:
        reported: tuple[Any, ...] = ()
        while True:
            await desk.changed()
            news = (self._seq, desk.counts, desk.totals.document())
            if news == reported and not desk.reports:
                continue
            endings = [desk.reports.popleft() for _ in range(len(desk.reports))]
            seq, counts, totals = news
            more = {**counts, "totals": totals}
            if await self._ask("gateway_report", seq=seq, endings=endings, **more) is None:
                desk.report_again(endings)
            else:
                reported = news
            await asyncio.sleep(REPORT_S)

    async def _report_usage(self, desk: Desk) -> None:
        while True:
            await asyncio.sleep(USAGE_S)
            # Later items wait: under a flood of requests this loop would never end.
            for _ in range(0, len(desk.usage), MAX_ROWS):
                used = desk.usage.take(MAX_ROWS)
                if await self._ask("gateway_used", used=used) is None:
                    desk.usage.put_back(used)
                    break
            for _ in range(0, len(desk.records), MAX_RECORDS):
                records = desk.take_records(MAX_RECORDS)
                if await self._ask("gateway_requests", requests=records) is None:
                    break  # people read these: losing a few is fine

    async def _ask(self, op: str, **args: Any) -> Mapping[str, Any] | None:
        try:
            return await daemon_socket.ask(self._path, Request(op, args), ANSWER_S)
        except ProblemError:
            await asyncio.sleep(RETRY_S)
            return None
