"""Read one sample of a card; a value that the card or the driver does not report is None."""

from __future__ import annotations

import time
from typing import Any

from caovand.adapters.gpu.nvml_library import CLOCK_MEMORY, CLOCK_SM, Nvml
from caovand.adapters.system import host
from caovand.core.health.observation import GpuSample
from caovand.core.units import MIB

ALL_LINKS = 0xFFFFFFFF  # the scope that sums a card's NVLinks
NVLINK_SENT = 138  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, in KiB
NVLINK_RECEIVED = 139  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, in KiB
PCIE_SENT = 0  # NVML_PCIE_UTIL_TX_BYTES
PCIE_RECEIVED = 1  # NVML_PCIE_UTIL_RX_BYTES
CORE_TEMPERATURE = 0  # NVML_TEMPERATURE_GPU


def read_sample(
    nvml: Nvml, card: Any, index: int, memory: Any, throttled: str, before: GpuSample | None
) -> GpuSample:
    """Sample the card with this handle and NVML's `memory`, None if it uses the host's.

    NVLink's rates are averages since the sample `before`. The driver measures PCIe for 20 ms at
    each call.
    """

    def read(function: str, *arguments: int, scale: int = 1) -> Any:
        figure = nvml.ask(function, card, *arguments)
        return figure if figure is None or scale == 1 else figure / scale

    def pcie(direction: int) -> int | None:
        kb = read("nvmlDeviceGetPcieThroughput", direction)
        return None if kb is None else kb * 1000

    total, used = _host_bytes() if memory is None else (memory.total, memory.used)
    load = read("nvmlDeviceGetUtilizationRates")
    users = read("nvmlDeviceGetComputeRunningProcesses") or ()
    sent, received = _nvlink_bytes(nvml, card)
    at = time.monotonic()

    def rate(earlier: int | None, now: int | None) -> float | None:
        seconds = at - before.at if before else 0.0
        if earlier is None or now is None or now < earlier or seconds <= 0:
            return None
        return round((now - earlier) / seconds)

    return GpuSample(
        index,
        used // MIB,
        total // MIB,
        None if load is None else int(load.gpu),
        read("nvmlDeviceGetTemperature", CORE_TEMPERATURE),
        read("nvmlDeviceGetPowerUsage", scale=1000),
        at,
        throttled=throttled,
        users=tuple((user.pid, (user.usedGpuMemory or 0) // MIB) for user in users),
        power_limit_w=read("nvmlDeviceGetEnforcedPowerLimit", scale=1000),
        energy_j=read("nvmlDeviceGetTotalEnergyConsumption", scale=1000),
        sm_clock_mhz=read("nvmlDeviceGetClockInfo", CLOCK_SM),
        memory_clock_mhz=read("nvmlDeviceGetClockInfo", CLOCK_MEMORY),
        pcie_sent_bytes_per_s=pcie(PCIE_SENT),
        pcie_received_bytes_per_s=pcie(PCIE_RECEIVED),
        nvlink_sent_bytes=sent,
        nvlink_received_bytes=received,
        nvlink_sent_bytes_per_s=rate(before.nvlink_sent_bytes if before else None, sent),
        nvlink_received_bytes_per_s=rate(
            before.nvlink_received_bytes if before else None, received
        ),
    )


def _nvlink_bytes(nvml: Nvml, card: Any) -> tuple[int | None, int | None]:
    """Bytes sent and received over all links since the driver was loaded."""
    fields = [(field, ALL_LINKS) for field in (NVLINK_SENT, NVLINK_RECEIVED)]
    links = nvml.ask("nvmlDeviceGetFieldValues", card, fields) or ()
    totals = [link.value.ullVal * 1024 if link.nvmlReturn == 0 else None for link in links]
    return (totals[0], totals[1]) if len(totals) == len(fields) else (None, None)


def _host_bytes() -> tuple[int, int]:
    """Total and used memory of a card that shares the host's memory, such as GB10."""
    total, available = host.memory_mib()
    return total * MIB, (total - available) * MIB
