"""How fast cards are: their makers' figures, and the share that an engine reaches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from caovand.core.engine import Modelled
from caovand.core.facts.inventory import Gpu, Inventory
from caovand.core.plan import Plan

BANDWIDTH_REACHED = 0.7
"""Marlin's kernels read at 416 to 455 of a 2080 Ti's 616 GB/s."""
RATE_REACHED = 0.5
"""Marlin's multiply at 57 of a 2080 Ti's 108 TFLOP/s."""
LINKED_S, UNLINKED_S = 7e-6, 34e-6
"""One all-reduce of a decode step: over NVLink, and through the host's memory."""
LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.97, 5: 3.94, 6: 7.56}
LANES_REACHED = 0.8
USUAL_LINK = (3, 16)
"""Where the link is not known. An idle card's link is slower than the one it works with, so
that no older generation is believed."""


@dataclass(frozen=True)
class Speed:
    """Stated GB/s of memory, and TFLOP/s of half precision without sparsity."""

    gb_s: float
    tflop_s: float


STATED = {
    "2080 Ti": Speed(616, 108), "TITAN RTX": Speed(672, 130), "RTX 8000": Speed(672, 130),
    "T4": Speed(320, 65), "3060": Speed(360, 51), "3070": Speed(448, 81), "3080": Speed(760, 119),
    "3090": Speed(936, 142), "A10": Speed(600, 125), "A40": Speed(696, 150),
    "A6000": Speed(768, 155), "A100-SXM4-40GB": Speed(1555, 312), "A100": Speed(2039, 312),
    "4060": Speed(272, 60), "4070": Speed(504, 117), "4080": Speed(717, 195),
    "4090": Speed(1008, 330), "L4": Speed(300, 121), "L40": Speed(864, 181),
    "L40S": Speed(864, 362),
    "5090": Speed(1792, 419), "PRO 6000": Speed(1792, 500), "H20": Speed(4000, 148),
    "H100": Speed(3350, 989), "H800": Speed(3350, 989), "H200": Speed(4800, 989),
    "B200": Speed(8000, 2250),
}  # fmt: skip
BY_CAPABILITY = {
    (7, 5): Speed(448, 60), (8, 0): Speed(1555, 312), (8, 6): Speed(600, 100),
    (8, 9): Speed(504, 120), (9, 0): Speed(3350, 989),
}  # fmt: skip
"""A typical card of each generation, for unknown names."""
NEWER = Speed(1792, 419)


def stated(gpu: Gpu) -> Speed:
    """What the maker states, by the longest mark in the card's name."""
    if marks := [mark for mark in STATED if _has_word(gpu.name, mark)]:
        return STATED[max(marks, key=len)]
    return BY_CAPABILITY.get(gpu.compute_capability, NEWER)


def _has_word(name: str, mark: str) -> bool:
    before, found, after = name.partition(mark)
    return bool(found) and not before[-1:].isalnum() and not after[:1].isalnum()


def slowest(gpus: Sequence[Gpu]) -> Speed:
    """The figures of the slowest card, for which the others wait."""
    speeds = [stated(gpu) for gpu in gpus]
    return Speed(
        min(speed.gb_s for speed in speeds) * BANDWIDTH_REACHED,
        min(speed.tflop_s for speed in speeds) * RATE_REACHED,
    )


def host_link(gpus: Sequence[Gpu]) -> tuple[int, int, float]:
    """Generation, lanes and GB/s of the narrowest way to the host's memory."""
    link = min((gpu.pcie or USUAL_LINK for gpu in gpus), key=lambda link: link[1])
    generation = min(max(link[0], USUAL_LINK[0]), max(LANE_GB_S))
    return generation, link[1], LANE_GB_S[generation] * link[1] * LANES_REACHED


def joined(gpus: Sequence[Gpu]) -> str:
    """What joins the cards, in words."""
    if linked(gpus):
        return "joined by NVLink"
    if not all(gpu.pcie for gpu in gpus):
        return "not all linked by NVLink"
    generation, lanes, _ = host_link(gpus)
    return f"not all linked by NVLink: they exchange data over PCIe {generation}.0 x{lanes}"


def linked(gpus: Sequence[Gpu]) -> bool:
    """Whether NVLink joins each of these cards with every other."""
    return all(one.index in two.nvlink for one in gpus for two in gpus if one.index != two.index)


def one_answer(
    speed: Callable[[Plan, Inventory], float | None],
) -> Callable[[Plan, Inventory, int, int], Modelled]:
    """Model the throughput of an engine for which only one answer's speed is modelled."""

    def modelled(plan: Plan, inventory: Inventory, prompt: int, at_once: int) -> Modelled:
        return Modelled(decode=speed(plan, inventory) if at_once == 1 else None)

    return modelled
