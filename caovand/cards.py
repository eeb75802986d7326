"""The GPUs beside a running engine: samples for the detector, neighbours, memory that comes back.

Samples come from the sampler's thread and are passed on in the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Collection, Sequence

from caovand.adapters import nvml, processes
from caovand.adapters.gpu_samples import GpuSampler
from caovand.core import neighbours
from caovand.core.inventory import Gpu
from caovand.core.observation import GpuSample

KEPT = 120  # samples, of all cards together
BACK_S = 60.0
STUCK_S = 10.0  # memory that nobody known holds and that does not move is not coming back
LOOK_S = 1.0


class Cards:
    """`on_sample` and `on_kernel_line` hear of cards in use, `notice` what people should know."""

    def __init__(
        self,
        sample_s: float,
        on_sample: Callable[[GpuSample], None],
        on_kernel_line: Callable[[str], None],
        notice: Callable[[str], None],
    ) -> None:
        self.latest: dict[int, GpuSample] = {}
        self.history: deque[GpuSample] = deque(maxlen=KEPT)
        self.used: frozenset[int] = frozenset()
        self.ours: frozenset[int] = frozenset()
        self._on_sample, self._on_kernel_line, self._notice = on_sample, on_kernel_line, notice
        self._taken: neighbours.Taken | None = None
        self._others: neighbours.Taken = {}
        loop = asyncio.get_running_loop()

        def on_loop(function: Callable[..., None]) -> Callable[..., None]:
            def pass_on(*arguments: object) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(function, *arguments)

            return pass_on

        self._sampler = GpuSampler(sample_s, on_loop(self._samples), on_loop(self._xid))

    def engine(self, used: Collection[int], ours: Collection[int]) -> None:
        """Which cards the engine uses, and which processes are its."""
        self.used, self.ours = frozenset(used), frozenset(ours)

    def others(self) -> neighbours.Used:
        """What other programs have of the cards in use, when that was last known."""
        return neighbours.by_card(self._others)

    def stop(self) -> None:
        """Sample no more."""
        self._sampler.stop()

    async def memory_back(
        self, before: Sequence[Gpu], dead: Collection[int], hurry: Callable[[], bool]
    ) -> str:
        """Wait until the memory of processes that ended is free; what is not, in words."""
        clock = asyncio.get_running_loop().time
        begun = moved = clock()
        last: tuple[int, ...] = ()
        while before:
            try:
                now = await asyncio.wait_for(asyncio.to_thread(nvml.read_gpus), BACK_S)
            except asyncio.TimeoutError:
                return f"the driver has not answered for {BACK_S:.0f} s"
            missing = neighbours.withheld(before, now, dead)
            free = tuple(gpu.free_mib for gpu in now)
            if free != last:
                last, moved = free, clock()
            held = any(pid in dead for gpu in now for pid, _, _ in gpu.users)
            stuck = not held and clock() - moved >= STUCK_S
            if not missing or stuck or hurry() or clock() - begun >= BACK_S:
                return missing
            await asyncio.sleep(LOOK_S)
        return ""

    def _samples(self, samples: Sequence[GpuSample]) -> None:
        for sample in samples:
            self.latest[sample.index] = sample
            self.history.append(sample)
            if sample.index in self.used:
                self._on_sample(sample)
        mine = [sample for sample in samples if sample.index in self.used]
        now = neighbours.taken(mine, self.ours)
        if now is not None and self._taken is not None:
            for (index, pid), mib in neighbours.grown(self._taken, now).items():
                name = processes.name_of(pid) or "another program"
                self._notice(f"GPU {index}: {name} (pid {pid}) has taken {mib} MiB")
        self._taken = now
        self._others = self._others if now is None else now

    def _xid(self, index: int, line: str) -> None:
        if index in self.used:
            self._on_kernel_line(line)
