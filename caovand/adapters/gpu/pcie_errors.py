"""Errors on a card's PCIe link that the hardware corrected, as the kernel counts them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from caovand.adapters.files.safe_files import read_or_empty
from caovand.core.facts.inventory import Gpu

DEVICES = Path("/sys/bus/pci/devices")
_ADDRESS = re.compile(r"[0-9a-f]{0,4}([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
_TOTAL = re.compile(r"TOTAL_ERR_COR (\d{1,20})\b")


def count_corrected(gpus: Iterable[Gpu], devices: Path = DEVICES) -> Mapping[int, int]:
    """Corrected errors since boot by card; without cards for which kernel or firmware count
    none."""
    counts = {gpu.index: _count(gpu.bus, devices) for gpu in gpus}
    return {index: count for index, count in counts.items() if count is not None}


def _count(bus: str, devices: Path) -> int | None:
    address = _ADDRESS.fullmatch(bus.lower())  # NVML's domain has eight digits, the kernel's four
    if address is None:
        return None
    total = _TOTAL.search(read_or_empty(devices / address[1] / "aer_dev_correctable"))
    return int(total[1]) if total else None
