"""Run warps on one SM, instruction by instruction in the compiler's schedule, and count cycles.

A warp issues in order. These delay it: the stall of its last instruction, the scoreboards of the
next one, another warp of its partition (among those ready, the one that has waited longest goes
first), a busy pipe, code missing from the L0 instruction cache, and barriers. The pipes of a
partition are tensor, fma, alu, half, special, branch and fetch; those of the SM are lsu (shared
memory, L1) and dram. Not modelled: the cost of taken branches, register banks, bank conflicts, L2
bandwidth, and TLB misses.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from card_model import card
from card_model.sass import NONE, Instruction, Kernel

_PIPES = {
    "fma": "FFMA FMUL FADD IMAD IMUL",
    "half": "HADD2 HMUL2 HFMA2 HSET2 HSETP2",
    "special": "MUFU F2F F2I I2F FRND POPC FLO BREV",
    "branch": "BRA BSSY BSYNC EXIT CALL RET NOP WARPSYNC YIELD BREAK BAR DEPBAR",
    "shared": "LDS STS LDSM SHFL ATOMS MOVM",
    "global": "LDG STG LD ST RED ATOMG LDL STL",
}
_PIPE = {name: pipe for pipe, names in _PIPES.items() for name in names.split()}
_LOADS = ("LDG", "LD", "LDL")
ENDLESS = 200_000
"""A run counts as endless after this many instructions of one name."""


@dataclass(frozen=True)
class Path:
    """The path of a warp, where the code does not determine it."""

    loop: int | None = None
    """The address of the branch that closes the main loop; None: the kernel runs end to end."""
    taken: Mapping[int, int] = field(default_factory=dict)
    """By address of a branch or EXIT: True, False, 3 (taken three times, then once not), -3 (the
    reverse).

    By default a conditional EXIT or forward branch is not taken, and a backward branch is.
    """
    scattered: frozenset[int] = frozenset()
    """Loads whose lanes each touch a different sector."""
    cached: frozenset[int] = frozenset()
    """Loads that hit L2."""
    all_cached: bool = False


@dataclass(eq=False)
class _Warp:
    path: Path
    cta: int
    partition: int
    at: int
    ready: float
    boards: list[float] = field(default_factory=lambda: [0.0] * 6)
    turns: Counter[int] = field(default_factory=Counter)
    laps: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Result:
    cycles: float
    """Cycles per lap of the main loop; without a loop, of all CTAs end to end."""
    busy: Mapping[str, float]
    """The busy share of each pipe, in the busiest partition."""
    issued: Counter[str]


def simulate(
    kernel: Kernel,
    ctas: Sequence[Sequence[Path]],
    *,
    laps: int = 4,
    active_sms: int = card.SMS,
    dram_latency: int = card.DRAM_LATENCY,
) -> Result:
    """Run CTAs concurrently on one SM; each has a path for each of its warps."""
    return _Sm(kernel, ctas, laps, card.dram_cycles_a_byte(active_sms), dram_latency).run()


class _Sm:
    def __init__(
        self,
        kernel: Kernel,
        ctas: Sequence[Sequence[Path]],
        laps: int,
        dram: float,
        dram_latency: int,
    ) -> None:
        self.kernel, self.laps, self.dram, self.dram_latency = kernel, laps, dram, dram_latency
        self.index = {i.address: n for n, i in enumerate(kernel.instructions)}
        self.warps = [
            _Warp(path, c, (c * len(paths) + w) % card.PARTITIONS, self.head(path), 97.0 * c)
            for c, paths in enumerate(ctas)
            for w, path in enumerate(paths)
        ]
        self.width = [len(paths) for paths in ctas]
        self.free: dict[tuple[str, int], float] = defaultdict(float)
        self.busy: dict[tuple[str, int], float] = defaultdict(float)
        self.waiting: dict[int, list[_Warp]] = defaultdict(list)
        self.issued: Counter[str] = Counter()
        self.lines: list[OrderedDict[int, float]] = [OrderedDict() for _ in range(card.PARTITIONS)]
        self.heap = [(w.ready, 0.0, n) for n, w in enumerate(self.warps)]

    def head(self, path: Path) -> int:
        if path.loop is None:
            return 0
        return self.kernel.labels[self.kernel.instructions[self.index[path.loop]].target or ""]

    def run(self) -> Result:
        heapq.heapify(self.heap)
        while self.heap:
            at, issued, n = heapq.heappop(self.heap)
            warp = self.warps[n]
            instruction = self.kernel.instructions[warp.at]
            when = self.earliest(warp, instruction, at)
            if when > at:
                heapq.heappush(self.heap, (when, issued, n))
            elif self.issue(warp, instruction, at):
                heapq.heappush(self.heap, (warp.ready, at, n))
        total = max([self.free["dram", 0], *(w.laps[-1] for w in self.warps if w.laps)])
        timed = [w.laps for w in self.warps if len(w.laps) > 2]
        cycles = sum((t[-1] - t[1]) / (len(t) - 2) for t in timed) / len(timed) if timed else total
        busy: dict[str, float] = {}
        for (pipe, _), value in self.busy.items():
            busy[pipe] = max(busy.get(pipe, 0.0), value / total)
        return Result(cycles, busy, self.issued)

    def earliest(self, warp: _Warp, i: Instruction, at: float) -> float:
        when = max(at, self.free["issue", warp.partition], self.fetched(warp, i, at))
        for board in range(6):
            if i.waits >> board & 1:
                when = max(when, warp.boards[board])
        pipe = _pipe(i)
        return when if pipe in ("shared", "global") else max(when, self.free[pipe, warp.partition])

    def fetched(self, warp: _Warp, i: Instruction, at: float) -> float:
        """When the instruction is in the L0 cache; also prefetches the next line."""
        lines, line = self.lines[warp.partition], i.address // card.LINE
        for needed in (line, line + 1):
            if needed not in lines:
                lines[needed] = self.occupy("fetch", warp.partition, at, card.LINE_FETCH)
            lines.move_to_end(needed)
        while len(lines) > card.L0_LINES:
            lines.popitem(last=False)
        return lines[line]

    def occupy(self, pipe: str, partition: int, start: float, cycles: float) -> float:
        self.busy[pipe, partition] += cycles
        self.free[pipe, partition] = end = max(start, self.free[pipe, partition]) + cycles
        return end

    def issue(self, warp: _Warp, i: Instruction, when: float) -> bool:
        """Issue the instruction; returns whether the warp continues."""
        self.issued[i.name] += 1
        if self.issued[i.name] > ENDLESS:
            raise RuntimeError(
                f"cannot end: a warp circles at {i.address:#x}; say how often it branches there"
            )
        self.occupy("issue", warp.partition, when, 1)
        pipe = _pipe(i)
        if pipe in ("shared", "global"):
            wrote, read = self.access(warp, i, when)
        else:
            read = self.occupy(pipe, warp.partition, when, _cycles(i, pipe))
            wrote = when + card.SPECIAL_LATENCY
        for board, clears in ((i.sets, wrote), (i.reads, read)):
            if board != NONE:
                warp.boards[board] = max(warp.boards[board], clears)
        warp.ready = when + max(i.stall, 1)
        if i.name != "BAR":
            return self.advance(warp, i, when)
        warp.at += 1
        self.waiting[warp.cta].append(warp)
        self.release(warp.cta, when)
        return False

    def release(self, cta: int, when: float) -> None:
        """Release the warps of a CTA once all have reached the barrier."""
        waiting = self.waiting[cta]
        if len(waiting) < self.width[cta]:
            return
        for warp in waiting:
            warp.ready = when + card.BARRIER_LATENCY
            heapq.heappush(self.heap, (warp.ready, when, self.warps.index(warp)))
        waiting.clear()

    def access(self, warp: _Warp, i: Instruction, when: float) -> tuple[float, float]:
        """When the result of a shared or global access is ready, and when its operands have been
        read."""
        size = 32 * _lane_bytes(i)
        scattered = i.address in warp.path.scattered
        end = self.occupy("lsu", 0, when, 32 if scattered else size / card.SHARED_BYTES)
        if _pipe(i) == "shared":
            return end + card.SHARED_LATENCY - 2, end
        if ".U16" in i.opcode:
            size //= 2
        elif ".U8" in i.opcode:
            size //= 4
        if i.name in _LOADS and (warp.path.all_cached or i.address in warp.path.cached):
            return end + card.L2_LATENCY, end
        served = self.occupy("dram", 0, end, (32 * 32 if scattered else size) * self.dram)
        return max(end + self.dram_latency, served), end

    def advance(self, warp: _Warp, i: Instruction, when: float) -> bool:
        if i.name == "EXIT":
            if i.predicated and not self.takes(warp, i, False):
                warp.at += 1
                return True
            warp.laps.append(when)
            self.width[warp.cta] -= 1
            self.release(warp.cta, when)
            return False
        if i.name != "BRA" or i.target is None or ".DIV" in i.opcode or ".CONV" in i.opcode:
            warp.at += 1
            return True
        target = self.kernel.labels[i.target]
        if i.address == warp.path.loop:
            warp.laps.append(when)
            warp.at = target
            return len(warp.laps) <= self.laps
        taken = self.takes(warp, i, not i.predicated or target <= warp.at)
        warp.at = target if taken else warp.at + 1
        return True

    def takes(self, warp: _Warp, i: Instruction, otherwise: bool) -> bool:
        rule = warp.path.taken.get(i.address, otherwise)
        if isinstance(rule, bool):
            return rule
        warp.turns[i.address] += 1
        over = warp.turns[i.address] > abs(rule)
        if over:
            warp.turns[i.address] = 0
        return over == (rule < 0)


def _pipe(i: Instruction) -> str:
    return "tensor" if i.name in ("HMMA", "IMMA") else _PIPE.get(i.name, "alu")


def _cycles(i: Instruction, pipe: str) -> float:
    if i.name == "IMMA":
        return card.IMMA_INT8
    if pipe == "tensor":
        return card.HMMA_F32 if ".F32" in i.opcode else card.HMMA_F16
    return {"special": card.SPECIAL, "branch": 1}.get(pipe, card.MATH)


def _lane_bytes(i: Instruction) -> int:
    """Bytes per lane that pass through the load units."""
    if i.name == "LDSM":
        return 4 * int(i.opcode[-1]) if i.opcode[-2:] in (".2", ".4") else 4
    return 16 if ".128" in i.opcode else 8 if ".64" in i.opcode else 4
