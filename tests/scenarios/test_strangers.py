"""Everything that anyone on the network can reach, used with bad intentions."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
import urllib.request
from pathlib import Path

from tests.daemon_process import Daemon, daemon
from tests.patience import until
from tests.ports import free_port
from tests.scenarios.test_supervision import configuration, model

__all__ = ["model"]  # a fixture

SLOW = 3000
QUICK_S = 1.0  # far above what a status takes, far below what a flood once cost


def threads(one: Daemon) -> int:
    """How many threads the daemon has."""
    assert one.process is not None
    status = Path(f"/proc/{one.process.pid}/status").read_text()
    return int(status.partition("Threads:")[2].split()[0])


def scrape(port: int) -> bytes:
    """What a scraper gets, nothing where it gets no answer."""
    url = f"http://127.0.0.1:{port}/metrics"
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10) as answer:
        return bytes(answer.read())
    return b""


def test_slow_connections_to_the_metrics_cost_neither_threads_nor_answers(model: Path) -> None:
    port = free_port()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * SLOW)), hard))
    config = configuration(model, metrics=f'listen = "127.0.0.1:{port}"')
    with daemon(config) as one, contextlib.ExitStack() as held:
        one.until_state("SERVING")
        assert b'caovan_engine_up{model="%s",slot="main"} 1.0' % bytes(model) in scrape(port)
        before = threads(one)
        for _ in range(SLOW):
            client = held.enter_context(socket.socket())
            client.setblocking(False)
            with contextlib.suppress(OSError):
                client.connect(("127.0.0.1", port))
                client.send(b"GET /metrics HTTP/1.1\r\nX: ")
        for _ in range(20):
            began = time.monotonic()
            assert one.status()["state"] == "SERVING"
            assert time.monotonic() - began < QUICK_S
            assert threads(one) <= before + 8
        held.close()
        until(lambda: scrape(port), "a scrape when they are gone")
