"""A pynvml with scripted cards. It has only the functions that the daemon uses."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any

MIB = 1 << 20


class NVMLError(Exception):
    """Like pynvml's: one subclass for each error code."""


class NVMLError_GpuIsLost(NVMLError): ...


class NVMLError_NotSupported(NVMLError): ...


class NVMLError_Timeout(NVMLError): ...


class NVMLError_Unknown(NVMLError): ...


class FakeNvml:
    """The module; tests may change `used_mib`, `bits`, `broken` and `users` at any time.

    With `old` it has only the functions of pynvml 11.450.
    """

    NVMLError = NVMLError
    nvmlEventTypeXidCriticalError = 8

    def __init__(self, cards: int = 1, *, old: bool = False) -> None:
        self.cards = cards
        self.used_mib = [100] * cards
        self.bits = [0] * cards
        self.nvlink_kib = [1000] * cards
        self.nvlink_return = 0  # the error a card without NVLink reports for each field
        self.broken: dict[int, NVMLError] = {}
        self.users: dict[int, list[tuple[int, int]]] = {}
        self.events: queue.Queue[tuple[int, int]] = queue.Queue()
        self.inits = 0
        name = "Throttle" if old else "Event"
        setattr(self, f"nvmlDeviceGetCurrentClocks{name}Reasons", lambda card: self.bits[card])

    def nvmlInit(self) -> None:
        self.inits += 1

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return self.cards

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index in self.broken:
            raise self.broken[index]
        return index

    def nvmlDeviceGetMemoryInfo(self, card: int) -> Any:
        return SimpleNamespace(used=self.used_mib[card] * MIB, total=22_527 * MIB)

    def nvmlDeviceGetUtilizationRates(self, card: int) -> Any:
        return SimpleNamespace(gpu=42)

    def nvmlDeviceGetPowerUsage(self, card: int) -> int:
        raise NVMLError_NotSupported("Not Supported")

    def nvmlDeviceGetEnforcedPowerLimit(self, card: int) -> int:
        return 250_000

    def nvmlDeviceGetTotalEnergyConsumption(self, card: int) -> int:
        return 7_500

    def nvmlDeviceGetClockInfo(self, card: int, kind: int) -> int:
        return {1: 1_350, 2: 7_000}[kind]

    def nvmlDeviceGetPcieThroughput(self, card: int, way: int) -> int:
        return {0: 100, 1: 2_000}[way]

    def nvmlDeviceGetFieldValues(self, card: int, fields: list[tuple[int, int]]) -> list[Any]:
        self.nvlink_kib[card] += 64
        return [
            SimpleNamespace(
                nvmlReturn=self.nvlink_return,
                value=SimpleNamespace(ullVal=self.nvlink_kib[card] * (1 + (field == 139))),
            )
            for field, scope in fields
            if scope == 0xFFFFFFFF
        ]

    def nvmlDeviceGetTemperature(self, card: int, sensor: int) -> int:
        return 71

    def nvmlDeviceGetComputeRunningProcesses(self, card: int) -> list[Any]:
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=mib * MIB)
            for pid, mib in self.users.get(card, ())
        ]

    def nvmlEventSetCreate(self) -> object:
        return object()

    def nvmlDeviceRegisterEvents(self, card: int, kinds: int, events: object) -> None: ...

    def nvmlEventSetWait_v2(self, events: object, timeout_ms: int) -> Any:
        try:
            card, xid = self.events.get(timeout=min(timeout_ms, 20) / 1000)
        except queue.Empty:
            raise NVMLError_Timeout("Timeout") from None
        return SimpleNamespace(device=card, eventData=xid)

    def nvmlDeviceGetIndex(self, card: int) -> int:
        return card

    def nvmlDeviceGetPciInfo(self, card: int) -> Any:
        return SimpleNamespace(busId=b"00000000:01:00.0")
