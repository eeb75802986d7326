"""The speed of cards: their makers' specifications, and the fraction that an engine reaches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from caovand.core.engine.planning import Modelled
from caovand.core.facts.inventory import Gpu, Inventory
from caovand.core.plan import Plan

BANDWIDTH_REACHED = 0.7
"""Marlin's kernels read at 416 to 455 of a 2080 Ti's 616 GB/s."""
RATE_REACHED = 0.5
"""Marlin's multiply at 57 of a 2080 Ti's 108 TFLOP/s."""
ALL_REDUCES = 2
"""All-reduces of a layer: after attention, and after the MLP or the experts."""
LINKED_S, UNLINKED_S = 7e-6, 34e-6
"""Seconds of one all-reduce of a decode step: over NVLink, and through the host's memory."""
LINKS_GB_S = {(7, 0): 150, (7, 5): 50, (8, 0): 300, (8, 6): 56, (9, 0): 450, (10, 0): 900}
"""NVLink GB/s in each direction between two cards of a generation: for those with graphics outputs
over a bridge."""
LINKS_REACHED = 0.7
LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.97, 5: 3.94, 6: 7.56}
LANES_REACHED = 0.8
USUAL_LINK = (3, 16)
"""PCIe generation and lanes of an unknown link. An idle card's link is slower than a busy one's, so
a reported older generation is ignored."""


@dataclass(frozen=True)
class Speed:
    """Stated GB/s of memory, and TFLOP/s of half precision without sparsity."""

    gb_s: float
    tflop_s: float


PUBLISHED_SPEEDS = {
    "M40": Speed(288, 7), "P100": Speed(732, 21), "P40": Speed(347, 12), "P4": Speed(192, 5.5),
    "1050 Ti": Speed(112, 2), "1060": Speed(192, 4), "1070": Speed(256, 6.5),
    "1080": Speed(320, 9), "1080 Ti": Speed(484, 11), "TITAN Xp": Speed(548, 12),
    "V100": Speed(900, 125), "V100S": Speed(1134, 130), "TITAN V": Speed(653, 110),
    "1650": Speed(128, 3), "1660": Speed(192, 5), "1660 SUPER": Speed(336, 5),
    "1660 Ti": Speed(288, 5.5), "2060": Speed(336, 52), "2060 SUPER": Speed(448, 57),
    "2070": Speed(448, 60), "2070 SUPER": Speed(448, 73), "2080": Speed(448, 81),
    "2080 SUPER": Speed(496, 89), "2080 Ti": Speed(616, 108), "TITAN RTX": Speed(672, 130),
    "RTX 4000": Speed(416, 57), "RTX 5000": Speed(448, 89), "RTX 6000": Speed(672, 130),
    "RTX 8000": Speed(672, 130), "T4": Speed(320, 65),
    "3050": Speed(224, 36), "3060": Speed(360, 51), "3060 Ti": Speed(448, 65),
    "3070": Speed(448, 81), "3070 Ti": Speed(608, 87), "3080": Speed(760, 119),
    "3080 Ti": Speed(912, 136), "3090": Speed(936, 142), "3090 Ti": Speed(1008, 160),
    "A2": Speed(200, 18), "A10": Speed(600, 125), "A10G": Speed(600, 70), "A16": Speed(200, 18),
    "A30": Speed(933, 165), "A40": Speed(696, 150), "A2000": Speed(288, 32),
    "A4000": Speed(448, 77), "A4500": Speed(640, 95), "A5000": Speed(768, 111),
    "A6000": Speed(768, 155), "A100-SXM4-40GB": Speed(1555, 312),
    "A100-PCIE-40GB": Speed(1555, 312), "A100": Speed(2039, 312), "A800": Speed(2039, 312),
    "AGX Orin": Speed(205, 42), "Orin NX": Speed(102, 15), "Orin Nano": Speed(102, 10),
    "4060": Speed(272, 60), "4060 Ti": Speed(288, 88), "4070": Speed(504, 117),
    "4070 Ti": Speed(504, 160), "4070 Ti SUPER": Speed(672, 176), "4080": Speed(717, 195),
    "4080 SUPER": Speed(736, 209), "4090": Speed(1008, 330), "L4": Speed(300, 121),
    "L20": Speed(864, 119), "L40": Speed(864, 181), "L40S": Speed(864, 362),
    "RTX 4000 SFF Ada": Speed(280, 77), "RTX 4000 Ada": Speed(360, 107),
    "RTX 4500 Ada": Speed(432, 159), "RTX 5000 Ada": Speed(576, 261),
    "RTX 6000 Ada": Speed(960, 364), "5050": Speed(320, 53),
    "5060": Speed(448, 77), "5060 Ti": Speed(448, 95),
    "5070": Speed(672, 123), "5070 Ti": Speed(896, 176), "5080": Speed(960, 225),
    "5090": Speed(1792, 419), "PRO 4000": Speed(672, 190), "PRO 4500": Speed(896, 220),
    "PRO 5000": Speed(1344, 290), "PRO 6000": Speed(1792, 500), "GB10": Speed(273, 118),
    "Thor": Speed(273, 250), "H20": Speed(4000, 148), "H100": Speed(3350, 989),
    "H100 PCIe": Speed(2039, 756), "H100 NVL": Speed(3938, 835), "H800": Speed(3350, 989),
    "H200": Speed(4800, 989), "GH200": Speed(4000, 989), "B200": Speed(8000, 2250),
    "GB200": Speed(8000, 2450), "B300": Speed(8000, 2250), "GB300": Speed(8000, 2500),
}  # fmt: skip
BY_CAPABILITY = {
    (6, 0): Speed(732, 21), (6, 1): Speed(320, 9), (7, 0): Speed(900, 112), (7, 2): Speed(137, 11),
    (7, 5): Speed(448, 60), (8, 0): Speed(1555, 312), (8, 6): Speed(600, 100),
    (8, 7): Speed(102, 15), (8, 9): Speed(504, 120), (9, 0): Speed(3350, 989),
    (10, 0): Speed(8000, 2250), (10, 3): Speed(8000, 2250), (11, 0): Speed(273, 250),
    (12, 0): Speed(672, 123), (12, 1): Speed(273, 118),
}  # fmt: skip
"""A typical card of each generation, for unknown names."""
NEWER = Speed(672, 123)
PER_CLOCK = {
    (6, 0): 256, (6, 1): 256, (7, 0): 1024, (7, 2): 1024, (7, 5): 1024, (8, 0): 2048,
    (8, 6): 1024, (8, 7): 2048, (8, 9): 1024, (9, 0): 4096, (10, 0): 8192, (10, 3): 8192,
}  # fmt: skip
"""Half-precision operations per multiprocessor and clock, on tensor cores if it has them."""
NEWEST_PER_CLOCK = 1024
SUSTAINED = 0.85
"""The fraction of its highest clock that a busy card sustains."""


def card_speed(gpu: Gpu) -> Speed:
    """The card's reported speeds if the driver has them, else its maker's, by the longest mark in
    its name.
    """
    marks = [mark for mark in PUBLISHED_SPEEDS if _has_word(gpu.name, mark)]
    known = PUBLISHED_SPEEDS[max(marks, key=len)] if marks else None
    typical = known or BY_CAPABILITY.get(gpu.compute_capability, NEWER)
    # a part does not have all of the card's multiprocessors
    named = known is not None and not gpu.mig
    tflop_s = typical.tflop_s if named else _tflops_by_multiprocessors(gpu) or typical.tflop_s
    return Speed(gpu.memory_gb_s or typical.gb_s, tflop_s)


def _tflops_by_multiprocessors(gpu: Gpu) -> float | None:
    """The TFLOP/s of a card by its multiprocessors; None if the driver does not report them."""
    if not gpu.multiprocessors or not gpu.clock_mhz:
        return None
    each = PER_CLOCK.get(gpu.compute_capability, NEWEST_PER_CLOCK)
    return gpu.multiprocessors * each * gpu.clock_mhz * SUSTAINED / 1e6


def _has_word(name: str, mark: str) -> bool:
    before, word, after = name.partition(mark)
    return bool(word) and not before[-1:].isalnum() and not after[:1].isalnum()


def link_gb_s(gpus: Sequence[Gpu]) -> float:
    """NVLink GB/s between these cards, by the oldest of them."""
    oldest = min(gpu.compute_capability for gpu in gpus)
    known = [stated for since, stated in LINKS_GB_S.items() if since <= oldest]
    return LINKS_REACHED * (known or [*LINKS_GB_S.values()])[-1]


def card_link(groups: Sequence[Sequence[Gpu]]) -> tuple[float, float]:
    """Seconds of an empty all-reduce in these groups of cards, and bytes per second between cards:
    over NVLink if it joins those of every group, else through the host's memory.
    """
    gpus = [gpu for group in groups for gpu in group]
    if all(map(all_linked, groups)):
        return LINKED_S, link_gb_s(gpus) * 1e9
    return UNLINKED_S, host_link(gpus)[2] * 1e9


def transfer_s(ranks: int, bytes_s: float, size: float) -> float:
    """Seconds that `size` bytes add to an all-reduce: in each of the 2 (N - 1) turns of a ring one
    part of N is sent."""
    return 2 * (ranks - 1) / ranks * size / bytes_s


def slowest(gpus: Sequence[Gpu]) -> Speed:
    """The speeds of the slowest card, for which the others wait."""
    speeds = [card_speed(gpu) for gpu in gpus]
    return Speed(
        min(speed.gb_s for speed in speeds) * BANDWIDTH_REACHED,
        min(speed.tflop_s for speed in speeds) * RATE_REACHED,
    )


def host_link(gpus: Sequence[Gpu]) -> tuple[int, int, float]:
    """Generation, lanes and GB/s of the narrowest link to the host's memory."""
    link = min((gpu.pcie or USUAL_LINK for gpu in gpus), key=lambda link: link[1])
    generation = min(max(link[0], USUAL_LINK[0]), max(LANE_GB_S))
    return generation, link[1], LANE_GB_S[generation] * link[1] * LANES_REACHED


def link_text(gpus: Sequence[Gpu]) -> str:
    """A description of the link between the cards."""
    if all_linked(gpus):
        return "joined by NVLink"
    if not all(gpu.pcie for gpu in gpus):
        return "not all linked by NVLink"
    generation, lanes, _ = host_link(gpus)
    return f"not all linked by NVLink: they exchange data over PCIe {generation}.0 x{lanes}"


def all_linked(gpus: Sequence[Gpu]) -> bool:
    """Whether NVLink connects each of these cards with every other."""
    return all(one.index in two.nvlink for one in gpus for two in gpus if one.index != two.index)


def one_answer(
    speed: Callable[[Plan, Inventory], float | None],
) -> Callable[[Plan, Inventory, int, int], Modelled]:
    """The throughput of an engine for which only one answer's speed is modelled."""

    def modelled(plan: Plan, inventory: Inventory, prompt: int, at_once: int) -> Modelled:
        return Modelled(decode=speed(plan, inventory) if at_once == 1 else None)

    return modelled
