"""What processes use: memory and open descriptors, and what is used of /dev/shm."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass

from caovand.adapters import processes

SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True)
class Usage:
    """MiB that would be free without these processes, and their open files; None is unknown."""

    held_mib: int | None = None
    files: int | None = None


def tree(root: int) -> frozenset[int]:
    """A process and all below it that live."""
    table = processes.every()
    pids = {root, *processes.descendants(table, [root])}
    return frozenset(p.pid for p in table if p.pid in pids and not p.zombie)


def usage(pids: Collection[int]) -> Usage:
    """Of all these together. Other users' descriptors are unknown to all but root."""
    if not pids:
        return Usage()
    held = processes.held_mib(pids)
    try:
        return Usage(held, sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids))
    except OSError:
        return Usage(held)


def shared_memory_mib() -> float | None:
    """What is used of /dev/shm, by whomever."""
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError:
        return None
    return (found.f_blocks - found.f_bfree) * found.f_frsize / 2**20
