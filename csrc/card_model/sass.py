"""Read SM75 machine code as `nvdisasm -hex -c` prints it, with the compiler's schedule.

Bits 105 to 125 of each 128-bit instruction hold what the hardware obeys: the cycles until its warp
may issue the next instruction, and which of six scoreboards it sets and waits for. So fixed
latencies need no table: the compiler has encoded them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_LINE = re.compile(
    r"\s+/\*([0-9a-f]{4,5})\*/\s+(?:\{\s*)?(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?)\s*;"
    r".*?/\* 0x[0-9a-f]+ \*/"
)
_SECOND = re.compile(r"/\* (0x[0-9a-f]{16}) \*/")
_TARGET = re.compile(r"`\((\.L\w+)\)")
NONE = 7
"""No scoreboard."""


@dataclass(frozen=True, slots=True)
class Instruction:
    address: int
    opcode: str
    """With its modifiers: LDG.E.128.SYS."""
    predicated: bool
    target: str | None
    stall: int
    """Cycles until the warp may issue again."""
    sets: int
    """The scoreboard that clears when the result is written; 7 for none."""
    reads: int
    """The scoreboard that clears when the operands are read; 7 for none."""
    waits: int
    """A bit for each scoreboard that must be clear before it issues."""

    @property
    def name(self) -> str:
        return self.opcode.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Kernel:
    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int]
    """The index of the instruction after each label."""


def parse(listing: str, kernel: str) -> Kernel:
    """Return the first kernel of a listing whose mangled name contains `kernel`."""
    section = next(
        s for s in re.split(r"(?m)^//-+ \.text\.", listing)[1:] if kernel in s.split(None, 1)[0]
    )
    lines = section.splitlines()
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if m := re.match(r"(\.L\w+):", line):
            labels[m[1]] = len(instructions)
        elif m := _LINE.match(line):
            control = int(_SECOND.search(following)[1], 16) >> 41  # type: ignore[index]
            target = _TARGET.search(m[4])
            instructions.append(
                Instruction(
                    address=int(m[1], 16),
                    opcode=m[3],
                    predicated=bool(m[2]) and m[2].strip() != "@PT",
                    target=target[1] if target else None,
                    stall=control & 15,
                    sets=control >> 5 & 7,
                    reads=control >> 8 & 7,
                    waits=control >> 11 & 63,
                )
            )
    return Kernel(tuple(instructions), labels)
