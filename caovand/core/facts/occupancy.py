"""Memory that other processes use on the cards, and whether a dead engine's memory is free
again."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from caovand.core.facts.inventory import Gpu
from caovand.core.health.observation import GpuSample

NOTABLE_MIB = 256  # a desktop's fluctuations are smaller
DESKTOP_MIB = 512
"""Memory in use on a card above which more than the driver uses it."""
BUSY_MIB = 1024
"""Memory of other processes on a card that makes waiting worthwhile; a desktop uses less."""
HOST_RESERVE, MIN_HOST_RESERVE_MIB = 8, 1536
"""The host's share of unified memory: one eighth, but at least the system memory of a small
Jetson."""

IN_HOST_MEMORY = frozenset({(7, 2), (8, 7), (11, 0), (12, 1)})
"""Compute capabilities of GPUs that share the host's memory: Xavier, Orin, Thor, GB10."""

Occupancy = Mapping[tuple[int, int], int]
"""(card, pid) -> MiB, for other processes than ours."""
Used = Mapping[int, int]
"""Card -> MiB."""


class CardUser(NamedTuple):
    """A process and the memory that it uses on a card."""

    name: str
    pid: int
    mib: int
    card: int

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid}) has allocated {self.mib} MiB of GPU {self.card}"


def host_reserve_mib(total_mib: int) -> int:
    """Unified memory to reserve for the host, in MiB.

    If it is full to the last GiB, a GB10's host hangs before any allocation fails (vllm#46307,
    #56824).
    """
    return max(total_mib // HOST_RESERVE, MIN_HOST_RESERVE_MIB)


def unoccupied(gpu: Gpu) -> Gpu:
    """The card with all its memory free."""
    reserve = host_reserve_mib(gpu.total_mib) if gpu.unified else 0
    return replace(gpu, free_mib=max(gpu.total_mib - reserve, 0))


def in_use(gpu: Gpu) -> int:
    """Memory in use on a card, in MiB."""
    return unoccupied(gpu).free_mib - gpu.free_mib


def without_other_processes(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The cards without any other process's memory use."""
    return tuple(unoccupied(gpu) if in_use(gpu) >= BUSY_MIB else gpu for gpu in gpus)


def used_by_card(gpus: Sequence[Gpu]) -> Used:
    """Used memory by card; for a partitioned card, on its fullest part."""
    usage: dict[int, int] = {}
    for gpu in gpus:
        usage[gpu.index] = max(usage.get(gpu.index, 0), in_use(gpu))
    return usage


def by_card(occupancy: Occupancy) -> Used:
    """Total over processes, by card."""
    usage: dict[int, int] = {}
    for (card, _), mib in occupancy.items():
        usage[card] = usage.get(card, 0) + mib
    return usage


def maxima(*samples: Used) -> Used:
    """Maximum of these samples, by card."""
    cards = {card for sample in samples for card in sample}
    return {card: max(sample.get(card, 0) for sample in samples) for card in cards}


def has_memory_again(before: Used, now: Used) -> bool:
    """Whether notably less memory is in use on some card than before."""
    return any(mib - now.get(card, mib) >= NOTABLE_MIB for card, mib in before.items())


def by_others(samples: Sequence[GpuSample], ours: Collection[int]) -> Occupancy | None:
    """Memory of other processes; None if ours cannot be distinguished.

    In a container the driver reports the host's pids, which do not match ours.
    """
    users = {(s.index, pid): mib for s in samples for pid, mib in s.users}
    if users and not any(pid in ours for _, pid in users):
        return None
    return {place: mib for place, mib in users.items() if place[1] not in ours}


def card_of(pid: int, samples: Sequence[GpuSample]) -> int | None:
    """The card on which a process has most of its memory; None if the driver does not report it.

    A process may also have a little memory on peer cards.
    """
    sizes = {s.index: mib for s in samples for user, mib in s.users if user == pid}
    largest = [index for index, mib in sizes.items() if mib == max(sizes.values())]
    return largest[0] if len(largest) == 1 else None


def find_growth(before: Occupancy, now: Occupancy) -> dict[tuple[int, int], int]:
    """Processes that use notably more than before, with their current use."""
    return {place: mib for place, mib in now.items() if mib - before.get(place, 0) >= NOTABLE_MIB}


def used_by_others(samples: Sequence[GpuSample], ours: Collection[int]) -> Used:
    """Memory that others, including the driver, use on each card."""
    return {s.index: s.used_mib - sum(mib for pid, mib in s.users if pid in ours) for s in samples}


def taken_since(
    before: Sequence[Gpu], now: Sequence[Gpu], ours: Collection[int]
) -> Sequence[CardUser]:
    """Other processes that use notably more memory on these cards than before."""
    then = {(gpu.index, pid): mib for gpu in before for pid, _, mib in gpu.users}
    cards = {gpu.index for gpu in before}
    return [
        CardUser(name, pid, mib, gpu.index)
        for gpu in now
        for pid, name, mib in gpu.users
        if gpu.index in cards
        and pid not in ours
        and mib - then.get((gpu.index, pid), 0) >= NOTABLE_MIB
    ]


def describe_withheld(before: Sequence[Gpu], now: Sequence[Gpu], dead: Collection[int]) -> str:
    """Memory that was not freed after our processes died, in words; empty if all of it was.

    `before` is from before they started. Memory that others have taken since does not count.
    """
    then = {gpu.index: gpu for gpu in before}
    missing_on = []
    for gpu in now:
        if gpu.index not in then:
            continue
        users = [pid for pid, _, _ in gpu.users if pid in dead]
        if gpu.unified and not users:
            continue  # all programs of the host share this memory
        others = _used_by_others(gpu, dead) - _used_by_others(then[gpu.index], dead)
        missing = then[gpu.index].free_mib - gpu.free_mib - max(others, 0)
        if users or missing >= NOTABLE_MIB:
            who = f", still used by pid {users[0]}" if users else ""
            missing_on.append(f"GPU {gpu.index}: {max(missing, 0)} MiB have not been freed{who}")
    return "; ".join(missing_on)


def with_memory_back(gpus: Iterable[Gpu], pids: Container[int]) -> tuple[Gpu, ...]:
    """The cards as they will be once these processes are gone, to plan their successor."""
    return tuple(
        replace(gpu, free_mib=min(gpu.free_mib + _used_by(gpu, pids), unoccupied(gpu).free_mib))
        for gpu in gpus
    )


def _used_by(gpu: Gpu, pids: Container[int]) -> int:
    return sum(mib for pid, _, mib in gpu.users if pid in pids)


def _used_by_others(gpu: Gpu, dead: Container[int]) -> int:
    return sum(mib for pid, _, mib in gpu.users if pid not in dead)
