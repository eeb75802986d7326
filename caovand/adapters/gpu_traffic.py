"""What moves over a card's PCIe and NVLink, what it draws and how fast it is clocked, by NVML.

Each figure is None where the card or the driver has none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ALL_LINKS = 0xFFFFFFFF  # the scope that adds up a card's NVLinks
NVLINK_SENT = 138  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, in KiB
NVLINK_RECEIVED = 139  # the same of _RX
PCIE_SENT = 0
PCIE_RECEIVED = 1
SM_CLOCK = 1
MEMORY_CLOCK = 2

Ask = Callable[..., Any]
"""Asks NVML a question by name; the answer, None without one."""


@dataclass(frozen=True)
class Traffic:
    """Bytes a second, and over all NVLinks since the driver was loaded."""

    pcie_sent_bytes_per_s: float | None = None
    pcie_received_bytes_per_s: float | None = None
    nvlink_sent_bytes: int | None = None
    nvlink_received_bytes: int | None = None
    nvlink_sent_bytes_per_s: float | None = None
    nvlink_received_bytes_per_s: float | None = None


@dataclass(frozen=True)
class Power:
    """The limit in force, in watts; joules since the driver was loaded; clocks in MHz."""

    power_limit_w: float | None
    energy_j: float | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None


def power(ask: Ask, card: Any) -> Power:
    """The power and the clocks of a card."""
    limit = ask("nvmlDeviceGetEnforcedPowerLimit", card)
    energy = ask("nvmlDeviceGetTotalEnergyConsumption", card)
    return Power(
        None if limit is None else limit / 1000,
        None if energy is None else energy / 1000,
        ask("nvmlDeviceGetClockInfo", card, SM_CLOCK),
        ask("nvmlDeviceGetClockInfo", card, MEMORY_CLOCK),
    )


def traffic(ask: Ask, card: Any, before: Traffic, seconds: float) -> Traffic:
    """The traffic of a card, `seconds` after it was asked `before`.

    The driver measures PCIe for 20 ms each time it is asked.
    """

    def pcie(way: int) -> int | None:
        kb = ask("nvmlDeviceGetPcieThroughput", card, way)
        return None if kb is None else kb * 1000

    fields = [(field, ALL_LINKS) for field in (NVLINK_SENT, NVLINK_RECEIVED)]
    links = ask("nvmlDeviceGetFieldValues", card, fields) or ()
    sums = [link.value.ullVal * 1024 if link.nvmlReturn == 0 else None for link in links]
    sent, received = sums if len(sums) == len(fields) else (None, None)
    return Traffic(
        pcie(PCIE_SENT),
        pcie(PCIE_RECEIVED),
        sent,
        received,
        _rate(before.nvlink_sent_bytes, sent, seconds),
        _rate(before.nvlink_received_bytes, received, seconds),
    )


def _rate(before: int | None, after: int | None, seconds: float) -> float | None:
    if before is None or after is None or after < before or seconds <= 0:
        return None
    return round((after - before) / seconds)
