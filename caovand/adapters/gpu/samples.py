"""Sample the NVIDIA cards while an engine runs, and report the driver's Xid events.

One thread waits for events, with a time limit, and samples between them. Without NVML's bindings it
returns at once; a driver may be loaded later.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from caovand.adapters.gpu import nvml_library
from caovand.adapters.gpu.figures import read_sample
from caovand.adapters.gpu.nvml_library import Nvml, decode
from caovand.core.health.observation import THROTTLES, GpuSample

EVENT_WAIT_S = 1.0  # the longest wait for events, and so the time that stopping takes
STEADY_SAMPLES = 3  # samples in a row that must agree: clocks follow the load
# Their bits in nvmlClocksThrottleReasons.
REASONS = dict(zip((0x04, 0x08, 0x20, 0x40, 0x80), THROTTLES, strict=True))
SURE = ("NVMLError_GpuIsLost", "NVMLError_ResetRequired")

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
            with (
                contextlib.suppress(library.NVMLError),
                nvml_library.open_session(library) as nvml,
            ):
                self._sample_until_stopped(nvml)
            self._stopped.wait(self._sample_s)

    def _sample_until_stopped(self, nvml: Nvml) -> None:
        """Sample until stopped, or until no card answers."""
        indices = nvml.indices()
        events = self._subscribe(nvml.library, indices)
        due = time.monotonic()
        while indices and not self._stopped.is_set():
            now = time.monotonic()
            if now >= due:
                due = now + self._sample_s
                samples = [s for s in (self._sample(nvml, i) for i in indices) if s]
                self._on_samples(samples)
                if samples and all(sample.fault for sample in samples):
                    return
            events = self._wait(nvml.library, events, min(max(due - now, 0.01), EVENT_WAIT_S))

    # -- samples ----------------------------------------------------------------------------

    def _sample(self, nvml: Nvml, index: int) -> GpuSample | None:
        nvml.faults.clear()
        card = nvml.card(index)
        memory = None if card is None else nvml.ask("nvmlDeviceGetMemoryInfo", card)
        # Another call without an answer is not a fault; a lost card answers neither of these.
        if card is None or (memory is None and nvml.faults):
            return self._report_fault(index, nvml.faults[0]) if nvml.faults else None
        self._doubtful.discard(index)
        bits = nvml.ask("nvmlDeviceGetCurrentClocksEventReasons", card)
        if bits is None:  # its older name
            bits = nvml.ask("nvmlDeviceGetCurrentClocksThrottleReasons", card)
        throttled = self._throttling(index, bits or 0)
        sample = read_sample(nvml, card, index, memory, throttled, self._last.get(index))
        self._last[index] = sample
        return sample

    def _report_fault(self, index: int, problem: Exception) -> GpuSample | None:
        """Report a fault: at once if the driver is sure of it, else when it repeats."""
        sure = type(problem).__name__ in SURE or index in self._doubtful
        self._doubtful.add(index)
        fault = str(problem)
        if not sure:
            return None
        return GpuSample(index, 0, 0, None, None, None, time.monotonic(), fault=fault)

    def _throttling(self, index: int, bits: int) -> str:
        """The reasons that slow the card down; a change counts once STEADY_SAMPLES agree."""
        now = ", ".join(text for bit, text in REASONS.items() if bits & bit)
        seen = [*self._reasons.get(index, []), now][-STEADY_SAMPLES:]
        self._reasons[index] = seen
        if len(seen) == STEADY_SAMPLES and len(set(seen)) == 1:
            self._steady[index] = now
        return self._steady.get(index, "")

    # -- events -----------------------------------------------------------------------------

    def _subscribe(self, library: Any, indices: Sequence[int]) -> Any:
        """Subscribe to Xid errors of these cards; None if the driver has no events."""
        try:
            events = library.nvmlEventSetCreate()
            for index in indices:
                card = library.nvmlDeviceGetHandleByIndex(index)
                library.nvmlDeviceRegisterEvents(
                    card, library.nvmlEventTypeXidCriticalError, events
                )
        except library.NVMLError:
            return None
        return events

    def _wait(self, library: Any, events: Any, timeout_s: float) -> Any:
        """Wait for one event; returns the event set, None once it is unusable."""
        if events is None:
            self._stopped.wait(timeout_s)
            return None
        try:
            event = library.nvmlEventSetWait_v2(events, int(timeout_s * 1000))
            index = library.nvmlDeviceGetIndex(event.device)
            bus = decode(library.nvmlDeviceGetPciInfo(event.device).busId)
            self._on_xid(index, f"NVRM: Xid (PCI:{bus}): {int(event.eventData)}, from NVML")
        except library.NVMLError as problem:
            return events if type(problem).__name__ == "NVMLError_Timeout" else None
        return events
