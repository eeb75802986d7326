"""A pretended NVIDIA driver for a daemon under test: 2080 Ti cards as a JSON file says.

STANDIN_GPUS names the file: {"cards": 2, "lost": [0], "used_mib": 500}. It is read anew for each
question, so that a test can take a card away.
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
    used = int(_told().get("used_mib", 300))
    return SimpleNamespace(total=TOTAL_MIB * MIB, used=used * MIB, free=(TOTAL_MIB - used) * MIB)


def nvmlDeviceGetCudaComputeCapability(card: int) -> tuple[int, int]:
    return (7, 5)


def nvmlDeviceGetName(card: int) -> str:
    return "NVIDIA GeForce RTX 2080 Ti"


def nvmlDeviceGetUUID(card: int) -> str:
    return f"GPU-0000000{card}"


def nvmlDeviceGetTemperature(card: int, sensor: int) -> int:
    return 55


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
