"""A pretended NVIDIA driver for a daemon under test: 2080 Ti cards as a JSON file says.

STANDIN_GPUS names the file: {"cards": 2, "lost": [0], "used_mib": 500}. It is read anew for each
question, so that a test can take a card away. With "of": "NAME" the memory in use is that of the
processes with this name; a table of names has the MiB of each, which are in use in addition. "name"
and "total_mib" are those of other cards; "utilization", "temperature" and "power_w" are lists, a
value for each card. Energy and NVLink count up with time.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

MIB = 1 << 20
TOTAL_MIB = 22_527
nvmlEventTypeXidCriticalError = 8


class NVMLError(Exception):
    """As in pynvml."""


class NVMLError_GpuIsLost(NVMLError):
    """The card has fallen off the bus."""


class NVMLError_NotSupported(NVMLError):
    """Every question that is not answered here."""


class NVMLError_Timeout(NVMLError):
    """No event came."""


def _told() -> dict[str, Any]:
    return dict(json.loads(Path(os.environ["STANDIN_GPUS"]).read_text()))


def nvmlInit() -> None:
    _told()


def nvmlShutdown() -> None:
    pass


def nvmlDeviceGetCount() -> int:
    return int(_told()["cards"])


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    if index in _told().get("lost", ()):
        raise NVMLError_GpuIsLost("GPU is lost")
    return index


def nvmlDeviceGetIndex(card: int) -> int:
    return card


def nvmlDeviceGetMemoryInfo(card: int) -> Any:
    used, total = int(_told().get("used_mib", 300)), int(_told().get("total_mib", TOTAL_MIB))
    if isinstance(_told().get("of"), dict):
        used += sum(one.usedGpuMemory for one in nvmlDeviceGetComputeRunningProcesses(card)) // MIB
    return SimpleNamespace(total=total * MIB, used=used * MIB, free=(total - used) * MIB)


def nvmlDeviceGetCudaComputeCapability(card: int) -> tuple[int, int]:
    return (7, 5)


def nvmlDeviceGetName(card: int) -> str:
    return str(_told().get("name", "NVIDIA GeForce RTX 2080 Ti"))


def nvmlDeviceGetUUID(card: int) -> str:
    return f"GPU-0000000{card}"


def nvmlDeviceGetComputeRunningProcesses(card: int) -> list[Any]:
    of, found = _told().get("of", {}), []
    sizes = of if isinstance(of, dict) else {of: 200}
    for place in Path("/proc").glob("[0-9]*/comm"):
        try:
            mib = sizes.get(place.read_text().strip())
        except OSError:  # it has ended
            continue
        if mib is not None:
            pid = int(place.parent.name)
            found.append(SimpleNamespace(pid=pid, usedGpuMemory=mib * MIB))
    return found


def _reading(card: int, name: str, otherwise: int) -> int:
    values = _told().get(name)
    return int(values[card]) if values else otherwise


def nvmlDeviceGetUtilizationRates(card: int) -> Any:
    return SimpleNamespace(gpu=_reading(card, "utilization", 50), memory=20)


def nvmlDeviceGetPowerUsage(card: int) -> int:
    return _reading(card, "power_w", 180) * 1000


def nvmlDeviceGetEnforcedPowerLimit(card: int) -> int:
    return 250_000


def nvmlDeviceGetTotalEnergyConsumption(card: int) -> int:
    return int(time.monotonic() * 180_000)


def nvmlDeviceGetClockInfo(card: int, kind: int) -> int:
    return {1: 1_350, 2: 7_000}[kind]


def nvmlDeviceGetPcieThroughput(card: int, way: int) -> int:
    return 5_000


def nvmlDeviceGetFieldValues(card: int, fields: list[tuple[int, int]]) -> list[Any]:
    kib = SimpleNamespace(ullVal=int(time.monotonic() * 1000))
    return [SimpleNamespace(nvmlReturn=0, value=kib) for _ in fields]


def nvmlDeviceGetTemperature(card: int, sensor: int) -> int:
    return _reading(card, "temperature", 55)


def nvmlEventSetCreate() -> object:
    return object()


def nvmlDeviceRegisterEvents(card: int, kinds: int, events: object) -> None:
    pass


def nvmlEventSetWait_v2(events: object, timeout_ms: int) -> Any:
    time.sleep(timeout_ms / 1000)
    raise NVMLError_Timeout("Timeout")


def __getattr__(name: str) -> Any:
    if not name.startswith("nvml"):
        raise AttributeError(name)

    def refuse(*_: Any) -> Any:
        raise NVMLError_NotSupported("Not Supported")

    return refuse
