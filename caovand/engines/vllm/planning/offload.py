"""What weights in host memory cost: every step reads them over the PCIe bus."""

from __future__ import annotations

from collections.abc import Sequence

from caovand.core.facts.inventory import Gpu

LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.97, 5: 3.94, 6: 7.56}
EFFICIENCY = 0.8
USUAL_LINK = (3, 16)
"""Where the link is not known. An idle card's link is slower than the one it works with, so
that no older generation is believed."""


def step_cost(offload_gib: float, gpus: Sequence[Gpu]) -> str:
    """How much longer each step takes, in words."""
    link = min((gpu.pcie or USUAL_LINK for gpu in gpus), key=lambda link: link[1])
    generation = min(max(link[0], USUAL_LINK[0]), max(LANE_GB_S))
    rate = LANE_GB_S[generation] * link[1] * EFFICIENCY
    seconds = offload_gib * 1.074 / rate
    shown = f"{seconds:.2g}" if seconds < 10 else f"{seconds:.0f}"
    return (
        f"each step waits about {shown} s for {offload_gib:g} GiB a card over PCIe"
        f" {generation}.0 x{link[1]} ({rate:.0f} GB/s)"
    )
