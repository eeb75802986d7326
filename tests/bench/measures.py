"""Measurements of the daemon's benchmarks, and the format of figures."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from caovand.cli.common.client import DaemonClient
from tests.daemon_process import Daemon

ROUND_TRIPS = 2000
PAUSE_S = 0.003  # between them, for several seconds in all: readers have periods of seconds


def round_trip(one: Daemon) -> str:
    """`status` over the socket, asked again and again: median and the slowest of a hundred."""
    took = []
    with DaemonClient(one.folder / "run") as client:
        for _ in range(ROUND_TRIPS):
            began = time.perf_counter()
            client.ask("status")
            took.append(time.perf_counter() - began)
            time.sleep(PAUSE_S)
    return in_ms(took)


def in_ms(seconds: list[float]) -> str:
    """Median, and the slowest of a hundred."""
    took = sorted(seconds)
    median, p99 = took[len(took) // 2], took[int(len(took) * 0.99)]
    return f"{median * 1000:.1f} / {p99 * 1000:.1f} ms"


def shares(seconds: float, *processes: int) -> list[float]:
    """The share of a core that each of these takes for a while."""
    before, began = [cpu_s(process) for process in processes], time.monotonic()
    time.sleep(seconds)
    took = [cpu_s(process) - early for process, early in zip(processes, before, strict=True)]
    return [one / (time.monotonic() - began) for one in took]


def memory_mb(process: int) -> float:
    """Resident memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found
    return int(found[1]) / 1024


def pid(one: Daemon) -> int:
    """The daemon's process."""
    assert one.process is not None
    return one.process.pid


def cpu_s(process: int) -> float:
    """CPU seconds, user and system, that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
