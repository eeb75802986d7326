"""Sample the NVIDIA cards while an engine runs, and report the driver's Xid events.

One thread waits for events, with a time limit, and samples between them. Without NVML's bindings it
ends at once; a driver may be loaded later.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from caovand.adapters.gpu import nvml_library
from caovand.adapters.gpu.traffic import with_power, with_traffic
from caovand.adapters.system import host
from caovand.core.health.observation import THROTTLES, GpuSample

MIB = 1 << 20
EVENT_WAIT_S = 1.0  # the longest wait for events, and so the time that stopping takes
STEADY_SAMPLES = 3  # samples in a row that must agree: clocks follow the load
# Their bits in nvmlClocksThrottleReasons.
REASONS = dict(zip((0x04, 0x08, 0x20, 0x40, 0x80), THROTTLES, strict=True))
SURE = ("NVMLError_GpuIsLost", "NVMLError_ResetRequired")
UNSUPPORTED = ("NVMLError_NotSupported", "NVMLError_NoPermission", "NVMLError_NotFound")

OnSamples = Callable[[Sequence[GpuSample]], None]
OnXid = Callable[[int, str], None]


class GpuSampler:
    """Call `on_samples(samples)` and `on_xid(index, line)` from its own thread until `stop`.

    The line has the wording of the kernel log for the same event.
    """

    def __init__(
        self,
        sample_s: float,
        on_samples: OnSamples,
        on_xid: OnXid,
        library: Any = None,
    ) -> None:
        self._sample_s, self._on_samples, self._on_xid = sample_s, on_samples, on_xid
        self._library = library
        self._doubtful: set[int] = set()
        self._stopped = threading.Event()
        self._reasons: dict[int, list[str]] = {}
        self._last: dict[int, GpuSample] = {}
        self._steady: dict[int, str] = {}
        self._thread = threading.Thread(target=self._run, name="gpu-samples", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling; does not wait."""
        self._stopped.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; return whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            library = self._library or nvml_library.pynvml()
        except ImportError:
            return
        while not self._stopped.is_set():
            # Without a driver, with another version's, or while it is replaced: try again.
            with contextlib.suppress(library.NVMLError):
                library.nvmlInit()
                try:
                    self._session(library)
                finally:
                    with contextlib.suppress(library.NVMLError):
                        library.nvmlShutdown()
            self._stopped.wait(self._sample_s)

    def _session(self, nvml: Any) -> None:
        """Sample until stopped, or until no card answers."""
        indices = range(nvml.nvmlDeviceGetCount())
        events = self._subscribe(nvml, indices)
        due = time.monotonic()
        while indices and not self._stopped.is_set():
            now = time.monotonic()
            if now >= due:
                due = now + self._sample_s
                samples = [s for s in (self._sample(nvml, i) for i in indices) if s]
                self._on_samples(samples)
                if samples and all(sample.fault for sample in samples):
                    return
            events = self._wait(nvml, events, min(max(due - now, 0.01), EVENT_WAIT_S))

    # -- samples ----------------------------------------------------------------------------

    def _sample(self, nvml: Any, index: int) -> GpuSample | None:
        faults: list[Exception] = []

        def ask(name: str, *arguments: Any) -> Any:
            """The answer of NVML, None if this card or driver has none; record a fault."""
            question = getattr(nvml, name, None)
            if question is None:
                return None
            try:
                return question(*arguments)
            except nvml.NVMLError as problem:
                if type(problem).__name__ not in UNSUPPORTED:
                    faults.append(problem)
            except TypeError:  # older bindings take other arguments
                pass
            return None

        card = ask("nvmlDeviceGetHandleByIndex", index)
        memory = ask("nvmlDeviceGetMemoryInfo", card) if card is not None else None
        if card is None or (memory is None and faults):
            return self._faulty(index, faults[0]) if faults else None
        total, used = _host_bytes() if memory is None else (memory.total, memory.used)
        self._doubtful.discard(index)
        busy = ask("nvmlDeviceGetUtilizationRates", card)
        power = ask("nvmlDeviceGetPowerUsage", card)
        users = ask("nvmlDeviceGetComputeRunningProcesses", card) or ()
        bits = ask("nvmlDeviceGetCurrentClocksEventReasons", card)
        if bits is None:  # its older name
            bits = ask("nvmlDeviceGetCurrentClocksThrottleReasons", card)
        sample = GpuSample(
            index,
            used // MIB,
            total // MIB,
            None if busy is None else int(busy.gpu),
            ask("nvmlDeviceGetTemperature", card, 0),
            None if power is None else power / 1000,
            time.monotonic(),
            throttled=self._throttled(index, bits or 0),
            # One question without an answer is not a fault; a lost card answers none of them.
            users=tuple((user.pid, (user.usedGpuMemory or 0) // MIB) for user in users),
        )
        sample = with_traffic(ask, card, with_power(ask, card, sample), self._last.get(index))
        self._last[index] = sample
        return sample

    def _faulty(self, index: int, problem: Exception) -> GpuSample | None:
        """Report a fault: at once if the driver is sure of it, else when it repeats."""
        sure = type(problem).__name__ in SURE or index in self._doubtful
        self._doubtful.add(index)
        fault = str(problem)
        if not sure:
            return None
        return GpuSample(index, 0, 0, None, None, None, time.monotonic(), fault=fault)

    def _throttled(self, index: int, bits: int) -> str:
        """The reasons that slow the card down; a change counts once STEADY_SAMPLES agree."""
        now = ", ".join(text for bit, text in REASONS.items() if bits & bit)
        seen = [*self._reasons.get(index, []), now][-STEADY_SAMPLES:]
        self._reasons[index] = seen
        if len(seen) == STEADY_SAMPLES and len(set(seen)) == 1:
            self._steady[index] = now
        return self._steady.get(index, "")

    # -- events -----------------------------------------------------------------------------

    def _subscribe(self, nvml: Any, indices: Sequence[int]) -> Any:
        """Subscribe to Xid errors of these cards; None if the driver has no events."""
        try:
            events = nvml.nvmlEventSetCreate()
            for index in indices:
                card = nvml.nvmlDeviceGetHandleByIndex(index)
                nvml.nvmlDeviceRegisterEvents(card, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError:
            return None
        return events

    def _wait(self, nvml: Any, events: Any, timeout_s: float) -> Any:
        """Wait for one event; returns the event set, None once it is unusable."""
        if events is None:
            self._stopped.wait(timeout_s)
            return None
        try:
            event = nvml.nvmlEventSetWait_v2(events, int(timeout_s * 1000))
            index = nvml.nvmlDeviceGetIndex(event.device)
            bus = nvml.nvmlDeviceGetPciInfo(event.device).busId
            place = bus.decode(errors="replace") if isinstance(bus, bytes) else bus
            self._on_xid(index, f"NVRM: Xid (PCI:{place}): {int(event.eventData)}, from NVML")
        except nvml.NVMLError as problem:
            return events if type(problem).__name__ == "NVMLError_Timeout" else None
        return events


def _host_bytes() -> tuple[int, int]:
    """Total and used memory of a card that uses the host's, as GB10 does."""
    total, available = host.memory_mib()
    return total * MIB, (total - available) * MIB
