"""Probe the links between the head and its workers while no engine runs."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from caovand.adapters.network.port_check import Connection, connect, kernel_reason, listening
from caovand.core.cluster.link import LinkState, Probe, ProbeReport, Trial, handshake_words
from caovand.daemon.cluster.part import Signal
from caovand.daemon.cluster.workers import Worker, Workers

REPORT_S = 30.0
"""Time limit for workers to report the results of a probe."""


class _Awaited(NamedTuple):
    """A worker that is probed, in one run of its daemon: its report, or why none will come."""

    boot: str
    report: asyncio.Future[ProbeReport | str]

    def end(self, result: ProbeReport | str) -> None:
        if not self.report.done():
            self.report.set_result(result)


class Links:
    """Probes the links of a head whose ranks rendezvous at `host` and `port`, for its `workers`.

    `changed` wakes the sender of orders.
    """

    def __init__(self, workers: Workers, host: str, port: int, changed: Signal) -> None:
        self._workers, self._host, self._port = workers, host, port
        self._changed = changed
        self._probe: Probe | None = None
        self._awaited: dict[str, _Awaited] = {}
        self.turn = asyncio.Lock()
        """Serialises probes: there is only one rendezvous port."""

    async def probe_workers(self, own: str, workers: Collection[Worker]) -> None:
        """Probe the links of a head whose rank listens at `own` to these workers, all at once."""
        token = secrets.token_hex(32)
        words = handshake_words(token)
        failures: dict[Trial, str] = {}
        async with contextlib.AsyncExitStack() as stack:

            async def open_port(trial: Trial, host: str, port: int) -> tuple[str, int]:
                try:
                    return await stack.enter_async_context(listening(host, port, *words))
                except OSError as problem:
                    failures[trial] = kernel_reason(problem)
                    return "", 0

            bound, _ = await open_port("listen-rendezvous", self._host, self._port)
            head = await open_port("listen-head", own, 0)
            state = LinkState(self._host, self._port, bound, failures)
            if failures:
                for worker in workers:
                    self._workers.keep_link(worker, state)
            else:
                probe = Probe(token, (self._host, self._port), head)
                await self._exchange(probe, state, workers)

    async def _exchange(self, probe: Probe, state: LinkState, workers: Collection[Worker]) -> None:
        loop = asyncio.get_running_loop()
        awaited = {one.name: _Awaited(one.report.boot, loop.create_future()) for one in workers}
        self._probe, self._awaited = probe, dict(awaited)
        self._changed.wake()
        deadlines = [
            loop.call_later(REPORT_S, one.end, f"{name} reported nothing for {REPORT_S:.0f} s")
            for name, one in awaited.items()
        ]
        try:
            await asyncio.gather(
                *(self._finish(probe, state, one, awaited[one.name].report) for one in workers)
            )
        finally:
            for deadline in deadlines:
                deadline.cancel()
            self._probe, self._awaited = None, {}
            self._changed.wake()

    async def _finish(
        self,
        probe: Probe,
        state: LinkState,
        worker: Worker,
        awaited: asyncio.Future[ProbeReport | str],
    ) -> None:
        """Connect to a worker once it has reported, and keep the state of its link."""
        report = await awaited
        if isinstance(report, str):
            self._workers.keep_link(worker, replace(state, failures={"report": report}))
            return
        failures, made = {**report.failures}, Connection()
        if report.port:
            made = await connect(worker.address, report.port, *handshake_words(probe.token))
            if made.failure:
                failures["reach-worker"] = made.failure
        link = replace(state, failures=failures, connect_s=made.connect_s, report=report)
        self._workers.keep_link(worker, link)

    def probe_for(self, name: str) -> Probe | None:
        """The probe that this worker must run now."""
        return self._probe if name in self._awaited else None

    def hear(self, name: str, report: ProbeReport | None) -> None:
        """Accept a worker's report, if it belongs to this probe."""
        if name in self._awaited and self._probe and report and report.token == self._probe.token:
            self._awaited[name].end(report)

    def abandon_absent(self, present: Mapping[str, str]) -> None:
        """Stop waiting for workers that are not `present` in that run of their daemon, by name."""
        for name, awaited in [*self._awaited.items()]:
            if present.get(name) != awaited.boot:
                del self._awaited[name]
                awaited.end("its daemon exited or lost its link in the meantime")
