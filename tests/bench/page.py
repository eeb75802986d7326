"""`make bench`: what readers of the page and of the metrics cost the daemon, as a table.

The daemon, the page and the engine, the stand-in, share one core; another has who asks for the
status, and the readers have the rest. Where there is no rest they run on the asker's core only
while it would idle (SCHED_IDLE): what they cost is not ours, and under the default policy each
would keep the core for milliseconds before the asker gets it back. The page's share of its core
shows that they were at work. Goals are printed next to the figures; nothing here fails.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.measures import ROUND_TRIPS, in_ms, memory_mb, pid, round_trip, shares
from tests.daemon_process import Daemon, daemon
from tests.patience import until
from tests.ports import free_port
from tests.readers import readers
from tests.standin_daemon import configuration, make_model

READERS = 50
MEASURED_S = 6.0


def main() -> None:
    """Measure everything and print the table."""
    busy, all_cores = os.getloadavg()[0], os.sched_getaffinity(0)
    ours, theirs = two_cores(all_cores)
    others = all_cores - {ours, theirs}
    page, metrics = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="caovan-bench-") as folder:
        text = configuration(
            make_model(Path(folder) / "hybrid"),
            page=f'listen = "127.0.0.1:{page}"',
            metrics=f'listen = "127.0.0.1:{metrics}"',
        )
        os.sched_setaffinity(0, {ours})
        with daemon(text) as one:
            os.sched_setaffinity(0, {theirs})
            one.until_state("SERVING")
            until(lambda: one.status()["page"]["serving"], "the page")
            rows = [("two processes pass 200 bytes there and back, p50 / p99", passed(ours), "")]
            rows += measured(one, "nobody reads")
            with crowd(page, "polite", others):
                rows += measured(one, f"{READERS} readers of the page")
            for what, port in (("page", page), ("metrics", metrics)):
                with crowd(port, "rude", others):
                    rows += measured(one, f"{READERS} rude readers of each kind, of the {what}")
    print(f"\non cores {ours} and {theirs} of {len(all_cores)}; load average before: {busy:.1f}")
    print(f"{'what':<64} {'measured':>16}   goal")
    for what, figure, goal in rows:
        print(f"{what:<64} {figure:>16}   {goal}")


def two_cores(usable: set[int]) -> tuple[int, int]:
    """Two of these, if possible no two threads of one core; where there is only one, that twice."""
    last, threads = max(usable), set[int]()
    siblings = f"/sys/devices/system/cpu/cpu{last}/topology/thread_siblings_list"
    with contextlib.suppress(OSError):
        for first, _, end in re.findall(r"(\d+)(-(\d+))?", Path(siblings).read_text()):
            threads |= {*range(int(first), int(end or first) + 1)}
    return max(usable - threads or usable - {last} or usable), last


@contextlib.contextmanager
def crowd(port: int, kind: str, others: set[int]) -> Iterator[None]:
    """Readers on cores of their own, or where there are none, giving way to who asks."""
    with readers([port], READERS, kind) as process:
        if others:
            os.sched_setaffinity(process, others)
        else:
            os.sched_setscheduler(process, os.SCHED_IDLE, os.sched_param(0))
        yield


def passed(core: int) -> str:
    """What the machine itself takes between two cores: a status takes a few such exchanges."""
    ours, theirs = socket.socketpair()
    if (child := os.fork()) == 0:
        ours.close()
        os.sched_setaffinity(0, {core})
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
    os.waitpid(child, 0)
    return in_ms(took)


def measured(one: Daemon, meanwhile: str) -> Iterator[tuple[str, str, str]]:
    """Rows of figures at this moment."""
    yield f"{meanwhile}: status, p50 / p99", round_trip(one), "p99 under 5 ms"
    page = one.status()["page"]["pid"]
    of_daemon, of_page = shares(MEASURED_S, pid(one), page)
    yield f"{meanwhile}: memory of the page", f"{memory_mb(page):.1f} MB RSS", "under 60 MB"
    yield f"{meanwhile}: memory of the daemon", f"{memory_mb(pid(one)):.1f} MB RSS", "under 55 MB"
    yield f"{meanwhile}: CPU of the page", f"{of_page:.2%} of a core", ""
    yield f"{meanwhile}: CPU of the daemon", f"{of_daemon:.2%} of a core", ""


if __name__ == "__main__":
    main()
