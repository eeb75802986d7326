"""Add PCIe and NVLink traffic, power and clocks from NVML to a sample of a card.

A figure that the card or the driver does not report is None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from caovand.core.health.observation import GpuSample

ALL_LINKS = 0xFFFFFFFF  # the scope that sums a card's NVLinks
NVLINK_SENT = 138  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, in KiB
NVLINK_RECEIVED = 139  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, in KiB
PCIE_SENT = 0
PCIE_RECEIVED = 1
SM_CLOCK = 1
MEMORY_CLOCK = 2

Ask = Callable[..., Any]
"""Call an NVML function by name; None if the card or driver does not answer it."""


def with_power(ask: Ask, card: Any, sample: GpuSample) -> GpuSample:
    """Add the card's power limit, energy and clocks to a sample."""
    limit = ask("nvmlDeviceGetEnforcedPowerLimit", card)
    energy = ask("nvmlDeviceGetTotalEnergyConsumption", card)
    return replace(
        sample,
        power_limit_w=None if limit is None else limit / 1000,
        energy_j=None if energy is None else energy / 1000,
        sm_clock_mhz=ask("nvmlDeviceGetClockInfo", card, SM_CLOCK),
        memory_clock_mhz=ask("nvmlDeviceGetClockInfo", card, MEMORY_CLOCK),
    )


def with_traffic(ask: Ask, card: Any, sample: GpuSample, before: GpuSample | None) -> GpuSample:
    """Add the card's traffic to a sample; NVLink's rates are averages since the sample `before`.

    The driver measures PCIe for 20 ms at each call.
    """

    def pcie(direction: int) -> int | None:
        kb = ask("nvmlDeviceGetPcieThroughput", card, direction)
        return None if kb is None else kb * 1000

    fields = [(field, ALL_LINKS) for field in (NVLINK_SENT, NVLINK_RECEIVED)]
    links = ask("nvmlDeviceGetFieldValues", card, fields) or ()
    totals = [link.value.ullVal * 1024 if link.nvmlReturn == 0 else None for link in links]
    sent, received = totals if len(totals) == len(fields) else (None, None)
    earlier = before or sample  # no time has passed: no rate
    seconds = sample.at - earlier.at
    return replace(
        sample,
        pcie_sent_bytes_per_s=pcie(PCIE_SENT),
        pcie_received_bytes_per_s=pcie(PCIE_RECEIVED),
        nvlink_sent_bytes=sent,
        nvlink_received_bytes=received,
        nvlink_sent_bytes_per_s=_rate(earlier.nvlink_sent_bytes, sent, seconds),
        nvlink_received_bytes_per_s=_rate(earlier.nvlink_received_bytes, received, seconds),
    )


def _rate(before: int | None, after: int | None, seconds: float) -> float | None:
    if before is None or after is None or after < before or seconds <= 0:
        return None
    return round((after - before) / seconds)
