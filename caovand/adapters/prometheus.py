"""The daemon's own metrics for Prometheus, served on the loop; imported only where wanted.

Anybody on the network may connect, so everything a client can use up is bounded: connections,
the time of each, the bytes of a request, and how often values are collected.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, MetricsHandler
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from caovand.core.healing.failure import FAILURES
from caovand.core.lifecycle.state import State

MOST_CONNECTIONS = 8
EXCHANGE_S = 5.0  # from accepting a connection to the last byte of its answer
REQUEST_BYTES = 8192
FRESH_S = 1.0  # how long collected values serve every scrape
NAMES = ["slot", "model"]  # labels
BACKLOG = 16  # also what one turn of the loop accepts: a flood must not hold it up


class Metrics:
    """What a scrape shows, made from the status document that `read` gives."""

    def __init__(
        self, read: Callable[[], Mapping[str, Any]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._clock = read, clock
        self._stale_at: float | None = None
        self._kept: tuple[Metric, ...] = ()

    def collect(self) -> tuple[Metric, ...]:
        """All metrics; called by the client library."""
        now = self._clock()
        if self._stale_at is None or now >= self._stale_at:
            self._kept = tuple(self._collect(self._read()))
            self._stale_at = now + FRESH_S
        return self._kept

    def _collect(self, status: Mapping[str, Any]) -> Iterator[Metric]:
        slots = [(_names(slot), slot) for slot in status["slots"]]

        def gauge(name: str, help: str, value: Callable[[Mapping[str, Any]], float]) -> Metric:
            family = GaugeMetricFamily(f"caovan_{name}", help, labels=NAMES)
            for names, slot in slots:
                family.add_metric(names, float(value(slot)))
            return family

        states = GaugeMetricFamily(
            "caovan_state", "1 for the present state.", labels=[*NAMES, "state"]
        )
        for names, slot in slots:
            for state in State:
                states.add_metric([*names, state.value], float(slot["state"] == state.value))
        yield states
        yield gauge("engine_up", "Whether the engine serves.", lambda s: s["state"] == "SERVING")
        yield gauge("mtp_depth", "Tokens drafted at once.", lambda s: s["mtp"] or 0)
        yield gauge("degraded", "Steps of the ladder taken.", lambda s: len(s["rungs"]))
        help = "Engine starts after the first."
        restarts = CounterMetricFamily("caovan_restarts", help, labels=NAMES)
        failures = CounterMetricFamily("caovan_failures", "Failures.", labels=[*NAMES, "failure"])
        help = "Output that engine.log lacks."
        lost = CounterMetricFamily("caovan_log_lost_bytes", help, labels=NAMES)
        for names, slot in slots:
            lost.add_metric(names, slot["log_bytes_lost"])
            restarts.add_metric(names, slot["restarts"])
            for failure in FAILURES:
                failures.add_metric([*names, failure], slot["failed"].get(failure, 0))
        yield restarts
        yield failures
        yield lost
        yield from _cards(status["gpus"])

    def describe(self) -> list[Metric]:
        """Nothing: so that registering asks for no values."""
        return []


def _names(slot: Mapping[str, Any]) -> list[str]:
    return [slot["name"], slot["model"] or ""]


def _cards(gpus: list[Mapping[str, Any]]) -> Iterator[Metric]:
    used = GaugeMetricFamily("caovan_gpu_used_bytes", "Memory in use.", labels=["gpu"])
    heat = GaugeMetricFamily("caovan_gpu_celsius", "Temperature.", labels=["gpu"])
    slow = GaugeMetricFamily("caovan_gpu_throttled", "1 where slowed down.", labels=["gpu"])
    for gpu in gpus:
        name = [str(gpu["index"])]
        used.add_metric(name, gpu["used_mib"] * 2**20)
        slow.add_metric(name, float(bool(gpu["throttled"])))
        if gpu["temperature"] is not None:
            heat.add_metric(name, gpu["temperature"])
    if gpus:
        yield from (used, heat, slow)


class _Scrape(MetricsHandler):
    """The library's answer to a request that has been read already."""

    def setup(self) -> None:
        """`request` is a pair of files instead of a socket."""
        self.rfile, self.wfile = self.request

    def finish(self) -> None:
        """The caller sends what was written."""


class Server:
    """Answers scrapes on `listener`."""

    def __init__(self, listener: socket.socket, read: Callable[[], Mapping[str, Any]]) -> None:
        registry = CollectorRegistry()
        registry.register(Metrics(read))
        self._handler = _Scrape.factory(registry)
        self._listener = listener
        self._open = 0
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        """Begin to answer."""
        self._server = await asyncio.start_server(
            self._serve, sock=self._listener, limit=REQUEST_BYTES, backlog=BACKLOG
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._open >= MOST_CONNECTIONS:
                return
            self._open += 1
            try:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._exchange(reader, writer), EXCHANGE_S)
            finally:
                self._open -= 1
        finally:
            # `close` would wait for a client that does not read.
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            return
        writer.write(self._answer(request))
        with contextlib.suppress(OSError):
            writer.close()
            await writer.wait_closed()

    def _answer(self, request: bytes) -> bytes:
        answer = io.BytesIO()
        try:
            self._handler((io.BytesIO(request), answer), ("", 0), None)
        except ValueError:  # the library's, of an address such as `http://[`
            return b"HTTP/1.0 400 Bad Request\r\n\r\n"
        return answer.getvalue()


async def serve(listen: str, read: Callable[[], Mapping[str, Any]]) -> Server:
    """Serve on ADDRESS:PORT as long as the loop runs; OSError where that cannot be."""
    host, _, port = listen.rpartition(":")
    found = socket.getaddrinfo(
        host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, _, _, _, address = found[0]
    listener = socket.create_server(
        address[:2],
        family=family,
        backlog=BACKLOG,
        dualstack_ipv6=family == socket.AF_INET6 and socket.has_dualstack_ipv6(),
    )
    server = Server(listener, read)
    await server.start()
    return server
