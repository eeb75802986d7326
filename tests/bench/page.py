"""`make bench`: what readers of the page and of the metrics cost the daemon, as a table.

The daemon and the page share one core, the readers have the other; the engine is the stand-in.
Goals are printed next to the figures; nothing here fails.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.bench.daemon import ROUND_TRIPS, in_ms, memory, round_trip, share
from tests.daemon_process import Daemon, daemon, free_port
from tests.readers import readers
from tests.scenarios.test_page import rss_mb, served
from tests.scenarios.test_supervision import configuration, make_model

READERS = 50


def main() -> None:
    """Measure everything and print the table."""
    busy = os.getloadavg()[0]
    cores = sorted(os.sched_getaffinity(0))
    page, metrics = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="caovan-bench-") as folder:
        text = configuration(
            make_model(Path(folder) / "hybrid"),
            page=f'listen = "127.0.0.1:{page}"',
            metrics=f'listen = "127.0.0.1:{metrics}"',
        )
        os.sched_setaffinity(0, set(cores[:-1]) or set(cores))
        with daemon(text) as one:
            os.sched_setaffinity(0, {cores[-1]})
            one.until_state("SERVING")
            served(one)
            rows = [("two processes pass 200 bytes there and back, p50 / p99", passed(cores), "")]
            rows += measured(one, "nobody reads the page")
            with readers([page], READERS, "polite"):
                rows += measured(one, f"{READERS} readers of the page")
            for what, port in (("page", page), ("metrics", metrics)):
                with readers([port], READERS):
                    rows += measured(one, f"{READERS} rude readers of each kind, of the {what}")
    print(f"\non {len(cores)} cores, where the load average was {busy:.1f} before")
    print(f"{'what':<64} {'measured':>16}   goal")
    for what, figure, goal in rows:
        print(f"{what:<64} {figure:>16}   {goal}")


def passed(cores: Sequence[int]) -> str:
    """What the machine itself takes between two cores: a status takes several such exchanges."""
    ours, theirs = socket.socketpair()
    if (pid := os.fork()) == 0:
        ours.close()
        os.sched_setaffinity(0, {cores[0]})
        while data := theirs.recv(1 << 10):
            theirs.sendall(data)
        os._exit(0)
    theirs.close()
    took = []
    for _ in range(ROUND_TRIPS):
        began = time.perf_counter()
        ours.sendall(bytes(200))
        ours.recv(1 << 10)
        took.append(time.perf_counter() - began)
    ours.close()
    os.waitpid(pid, 0)
    return in_ms(took)


def measured(one: Daemon, while_what: str) -> Iterator[tuple[str, str, str]]:
    """Rows of figures at this moment."""
    yield f"{while_what}: status, p50 / p99", round_trip(one), "p99 under 5 ms"
    pid = one.status()["page"]["pid"]
    yield f"{while_what}: memory of the page", f"{rss_mb(pid):.1f} MB RSS", "under 60 MB"
    yield f"{while_what}: memory of the daemon", f"{memory(one):.1f} MB RSS", "under 55 MB"
    yield f"{while_what}: CPU of the daemon", f"{share(one):.2%} of a core", ""


if __name__ == "__main__":
    main()
