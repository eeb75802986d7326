"""The daemon's own metrics for Prometheus, served from a thread; imported only where wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from caovand.core.failure import FAILURES
from caovand.core.machine import State


class Metrics:
    """What a scrape shows, made from the status document that `read` gives in that moment."""

    def __init__(self, read: Callable[[], Mapping[str, Any]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """All metrics; called by the client library, in its thread."""
        status = self._read()

        def gauge(name: str, help: str, value: float) -> Metric:
            return GaugeMetricFamily(f"caovan_{name}", help, value=value)

        states = GaugeMetricFamily("caovan_state", "1 for the present state.", labels=["state"])
        for state in State:
            states.add_metric([state.value], float(status["state"] == state.value))
        yield states
        yield gauge("engine_up", "Whether the engine serves.", status["state"] == "SERVING")
        yield gauge("mtp_depth", "Tokens drafted at once.", status["mtp"] or 0)
        yield gauge("degraded", "Steps of the ladder taken.", len(status["rungs"]))
        restarts = CounterMetricFamily("caovan_restarts", "Engine starts after the first.")
        restarts.add_metric([], status["restarts"])
        yield restarts
        failures = CounterMetricFamily("caovan_failures", "Failures.", labels=["failure"])
        for failure in FAILURES:
            failures.add_metric([failure], status["failed"].get(failure, 0))
        yield failures
        yield from _cards(status["gpus"])

    def describe(self) -> list[Metric]:
        """Nothing: so that registering asks for no values."""
        return []


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


def serve(listen: str, read: Callable[[], Mapping[str, Any]]) -> None:
    """Serve on ADDRESS:PORT for the rest of our life; OSError where that cannot be."""
    host, _, port = listen.rpartition(":")
    registry = CollectorRegistry()
    registry.register(Metrics(read))
    start_http_server(int(port), host.strip("[]"), registry)
