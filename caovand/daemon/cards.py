"""The GPUs of running engines: samples for the detector, occupancy, and freed memory.

One sampler serves every slot: it samples in a thread and passes results to the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from caovand.adapters.gpu import nvml
from caovand.adapters.gpu.samples import GpuSampler
from caovand.adapters.system import processes
from caovand.core.facts import occupancy
from caovand.core.facts.inventory import Gpu
from caovand.core.figures import cards as figures
from caovand.core.health.observation import GpuSample

MAX_SAMPLES = 120  # samples, over all cards
BACK_S = 60.0
STUCK_S = 10.0  # memory of unknown processes that stays constant for this long will not be freed
POLL_S = 1.0
SLOW_S = 20.0  # maximum response time of a healthy driver


class CardUsage:
    """The cards of one slot: `on_sample` and `on_kernel_line` receive their samples and kernel
    lines. `notice` publishes texts for people.
    """

    def __init__(
        self,
        on_sample: Callable[[GpuSample], None],
        on_kernel_line: Callable[[str], None],
        notice: Callable[[str], None],
    ) -> None:
        self.used: frozenset[int] = frozenset()
        self.ours: frozenset[int] = frozenset()
        self.on_kernel_line = on_kernel_line
        self._on_sample, self._notice = on_sample, notice
        self._taken: occupancy.Occupancy | None = None
        self._others: occupancy.Occupancy = {}
        self._others_mib: occupancy.Used | None = None

    def engine(self, used: Collection[int], ours: Collection[int]) -> None:
        """Set the cards that the engine uses, and its processes."""
        self.used, self.ours = frozenset(used), frozenset(ours)

    def others(self) -> occupancy.Used:
        """Memory that other programs used on these cards when last known."""
        return occupancy.by_card(self._others)

    @property
    def others_mib(self) -> occupancy.Used | None:
        """Memory that others use on these cards; None if ours cannot be distinguished."""
        return self._others_mib

    async def taken_since(self, before: Sequence[Gpu]) -> str:
        """Processes that took memory of the cards in use since `before`, according to the driver.

        Empty if our own processes cannot be distinguished from others.
        """
        if self._others_mib is None:
            return ""
        try:
            now = await asyncio.wait_for(asyncio.to_thread(nvml.read_gpus), SLOW_S)
        except (asyncio.TimeoutError, RuntimeError):  # a hung driver, or no thread available
            return ""
        mine = [gpu for gpu in before if gpu.index in self.used]
        users = occupancy.taken_since(mine, now, self.ours)
        self._others = {**self._others, **{(user.card, user.pid): user.mib for user in users}}
        return ", ".join(map(str, users))

    def take(self, samples: Sequence[GpuSample]) -> None:
        """Take one round of samples of all cards."""
        mine = [sample for sample in samples if sample.index in self.used]
        for sample in mine:
            self._on_sample(sample)
        now = occupancy.by_others(mine, self.ours)
        if now is not None and self._taken is not None:
            for (index, pid), mib in occupancy.find_growth(self._taken, now).items():
                name = processes.name_of(pid) or "another program"
                self._notice(f"GPU {index}: {name} (pid {pid}) has allocated {mib} MiB")
        self._taken = now
        self._others = self._others if now is None else now
        if now is not None:
            self._others_mib = occupancy.used_by_others(mine, self.ours)


class Cards:
    """Samples all cards for every slot; `on_kernel_line` receives faults of cards in use."""

    def __init__(self, sample_s: float, on_kernel_line: Callable[[str], None]) -> None:
        self._latest: dict[int, GpuSample] = {}
        self._stale_s = 3 * sample_s + SLOW_S
        self.history: deque[GpuSample] = deque(maxlen=MAX_SAMPLES)
        self._rounds: tuple[figures.SampleRound, ...] = ()
        self._slots: list[CardUsage] = []
        self._on_kernel_line = on_kernel_line
        loop = asyncio.get_running_loop()

        def on_loop(function: Callable[..., None]) -> Callable[..., None]:
            def pass_on(*arguments: object) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(function, *arguments)

            return pass_on

        self._sampler = GpuSampler(sample_s, on_loop(self._samples), on_loop(self._xid))

    def share(self, slot: CardUsage) -> CardUsage:
        """Register a slot's cards."""
        self._slots.append(slot)
        return slot

    @property
    def latest(self) -> dict[int, GpuSample]:
        """Each card's last sample; none if the driver has stopped responding."""
        oldest = time.monotonic() - self._stale_s
        return {index: sample for index, sample in self._latest.items() if sample.at > oldest}

    def recent(self, now: float) -> dict[str, Any]:
        """The readings of the last minutes, as lists."""
        return figures.series(self._rounds, now)

    def stop(self) -> None:
        """Stop sampling."""
        self._sampler.stop()

    def _samples(self, samples: Sequence[GpuSample]) -> None:
        self._latest.update((sample.index, sample) for sample in samples)
        self.history.extend(samples)
        self._rounds = figures.follow(self._rounds, samples)
        for slot in self._slots:
            slot.take(samples)

    def _xid(self, index: int, line: str) -> None:
        slots = [slot for slot in self._slots if index in slot.used]
        if slots:
            self._on_kernel_line(line)
        for slot in slots:
            slot.on_kernel_line(line)


async def wait_for_freed_memory(
    before: Sequence[Gpu], dead: Collection[int], hurry: Callable[[], bool]
) -> str:
    """Wait until the memory of exited processes is free. Return a description of what was not
    freed.
    """
    clock = asyncio.get_running_loop().time
    begun = moved = clock()
    last: tuple[int, ...] = ()
    while before:
        try:
            now = await asyncio.wait_for(asyncio.to_thread(nvml.read_gpus), BACK_S)
        except asyncio.TimeoutError:
            return f"the driver has not answered for {BACK_S:.0f} s"
        missing = occupancy.describe_withheld(before, now, dead)
        free = tuple(gpu.free_mib for gpu in now)
        if free != last:
            last, moved = free, clock()
        dead_use = any(pid in dead for gpu in now for pid, _, _ in gpu.users)
        stuck = not dead_use and clock() - moved >= STUCK_S
        if not missing or stuck or hurry() or clock() - begun >= BACK_S:
            return missing
        await asyncio.sleep(POLL_S)
    return ""
