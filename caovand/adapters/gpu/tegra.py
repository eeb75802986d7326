"""The GPU of a Jetson, whose older releases lack NVML: the device tree identifies it."""

from __future__ import annotations

from pathlib import Path

from caovand.adapters.files.safe_files import read_or_empty
from caovand.core.facts.inventory import Gpu
from caovand.core.facts.occupancy import host_reserve_mib
from caovand.core.printable import one_line

CHIPS = {"tegra194": (7, 2), "tegra234": (8, 7), "tegra264": (11, 0)}
"""Compute capability of Xavier, Orin and Thor."""


def read_gpus(total_mib: int, available_mib: int, proc: Path = Path("/proc")) -> tuple[Gpu, ...]:
    """The single card, which shares this much host memory; none on other machines."""
    tree = proc / "device-tree"
    chips = read_or_empty(tree / "compatible").split("\0")
    name = read_or_empty(tree / "model").strip("\0")
    known = [CHIPS[chip.partition(",")[2]] for chip in chips if chip.partition(",")[2] in CHIPS]
    if not known:
        return ()
    free_mib = max(available_mib - host_reserve_mib(total_mib), 0)
    return (Gpu(0, one_line(name), known[0], total_mib, free_mib, unified=True),)
