"""Resource usage of processes: memory, cores and open descriptors; and the usage of /dev/shm."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass

from caovand.adapters.system import processes

SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True)
class Usage:
    """MiB that would be free without these processes, and their open files; None if unknown."""

    memory_mib: int | None = None
    files: int | None = None


@dataclass(frozen=True)
class ProcessUsage:
    """The usage of one process, read `at`; it `began` then: both in seconds since boot."""

    at: float
    began: float
    cpu_s: float
    resident_mib: int

    def cores_since(self, before: ProcessUsage | None) -> float | None:
        """The number of cores it kept busy since `before`; None if that was another process."""
        if before is None or before.began != self.began or before.at >= self.at:
            return None
        return (self.cpu_s - before.cpu_s) / (self.at - before.at)


def process_usage(pid: int) -> ProcessUsage | None:
    """Read the usage of a process; None if it does not exist."""
    stat = processes.stat_of(pid)
    if stat is None:
        return None
    at, tick_s = time.clock_gettime(time.CLOCK_BOOTTIME), 1 / os.sysconf("SC_CLK_TCK")
    user, system, began, pages = (int(stat[1][place]) for place in (11, 12, 19, 21))
    resident = pages * os.sysconf("SC_PAGE_SIZE") >> 20
    return ProcessUsage(at, began * tick_s, (user + system) * tick_s, resident)


def living_tree(root: int) -> frozenset[int]:
    """Find a process and its living descendants."""
    table = processes.all_processes()
    pids = {root, *processes.descendants(table, [root])}
    return frozenset(p.pid for p in table if p.pid in pids and not p.zombie)


def total_usage(pids: Collection[int]) -> Usage:
    """The total usage of these processes. Other users' descriptors are unknown to all but root."""
    if not pids:
        return Usage()
    memory_mib = processes.memory_mib(pids)
    try:
        return Usage(memory_mib, sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids))
    except OSError:
        return Usage(memory_mib)


def shared_memory_mib() -> float | None:
    """The MiB of /dev/shm in use, by all users."""
    try:
        volume = os.statvfs(SHARED_MEMORY)
    except OSError:
        return None
    return (volume.f_blocks - volume.f_bfree) * volume.f_frsize / 2**20
