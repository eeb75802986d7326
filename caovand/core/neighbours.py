"""Other programs on our cards: what they take, and whether a dead engine's memory is back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from caovand.core.inventory import Gpu
from caovand.core.observation import GpuSample

NOTABLE_MIB = 256  # a desktop's comings and goings are less

Taken = Mapping[tuple[int, int], int]
"""(card, pid) -> MiB, of processes that are not ours."""
Used = Mapping[int, int]
"""Card -> MiB."""


def used(gpus: Sequence[Gpu]) -> Used:
    """What is in use of each card; of one in parts, what is of the fullest part."""
    found: dict[int, int] = {}
    for gpu in gpus:
        found[gpu.index] = max(found.get(gpu.index, 0), gpu.total_mib - gpu.free_mib)
    return found


def by_card(taken: Taken) -> Used:
    """What processes have together of each card."""
    found: dict[int, int] = {}
    for (card, _), mib in taken.items():
        found[card] = found.get(card, 0) + mib
    return found


def most(*looks: Used) -> Used:
    """The most that any of these looks saw of each card."""
    cards = {card for look in looks for card in look}
    return {card: max(look.get(card, 0) for look in looks) for card in cards}


def has_room_again(before: Used, now: Used) -> bool:
    """Whether notably less of a card is in use than before."""
    return any(mib - now.get(card, mib) >= NOTABLE_MIB for card, mib in before.items())


def taken(samples: Sequence[GpuSample], ours: Collection[int]) -> Taken | None:
    """What others hold; None where ours cannot be told from theirs.

    In a container the driver names processes by numbers of the host, so that ours are not found.
    """
    users = {(s.index, pid): mib for s in samples for pid, mib in s.users}
    if users and not any(pid in ours for _, pid in users):
        return None
    return {place: mib for place, mib in users.items() if place[1] not in ours}


def grown(before: Taken, now: Taken) -> dict[tuple[int, int], int]:
    """Who holds notably more than before, and how much it is now."""
    return {place: mib for place, mib in now.items() if mib - before.get(place, 0) >= NOTABLE_MIB}


def withheld(before: Sequence[Gpu], now: Sequence[Gpu], dead: Collection[int]) -> str:
    """What of the cards' memory is not back after our processes died; empty where all is.

    `before` is from before they started. What others took since then is theirs.
    """
    then = {gpu.index: gpu for gpu in before}
    told = []
    for gpu in now:
        if gpu.index not in then:
            continue
        held = [pid for pid, _, _ in gpu.users if pid in dead]
        others = _held(gpu, dead) - _held(then[gpu.index], dead)
        missing = then[gpu.index].free_mib - gpu.free_mib - max(others, 0)
        if held or missing >= NOTABLE_MIB:
            who = f", held by pid {held[0]}" if held else ""
            told.append(f"GPU {gpu.index}: {max(missing, 0)} MiB are not back{who}")
    return "; ".join(told)


def _held(gpu: Gpu, dead: Collection[int]) -> int:
    return sum(mib for pid, _, mib in gpu.users if pid not in dead)
