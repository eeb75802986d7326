"""The kernels that the model was tried on, and ours: what each takes of an SM, how warps run it.

The published ones are those of carjorvaz/qwen38-27b-rtx2080ti (patches-turing, vLLM 0.28); none of
their code is here. Each was compiled for sm_75 with nvcc 13.0.88, prefill attention from PyTorch
2.13's template and CUTLASS 4.2; branches are named by their addresses in that code. `cycles` is
what `python -m card_model` counts of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from card_model import card
from card_model.sm import Path


@dataclass(frozen=True, kw_only=True)
class Kernel:
    symbol: str
    """A part of the mangled name."""
    threads: int
    registers: int
    shared: int
    """Bytes per CTA."""
    cycles: int
    """Cycles per lap of the main loop; without a loop, of all CTAs that fit an SM, end to end."""
    path: Callable[[int], Path]
    """The path of each warp, by its number."""
    alone: bool = False
    """Whether it has the whole bandwidth to itself, with no other SMs or CTAs active."""

    @property
    def resident(self) -> int:
        """The number of CTAs that share an SM."""
        return 1 if self.alone else card.resident(self.threads, self.registers, self.shared)


def _set(rule: int, *addresses: int) -> dict[int, int]:
    return dict.fromkeys(addresses, rule)


_SCORES = {**_set(True, 0x9730, 0xA4B0), 0xA450: -3}
_STATE_4 = {
    **_set(True, 0x1810, 0x2210, 0x3C10, 0x4970),
    **_set(7, 0x2160, 0x48B0),
    **_set(15, 0x2D80, 0x6C90),
}
_STATE_16 = {
    **_set(True, 0x1690, 0x1FC0, 0x32A0, 0x3FE0),
    **_set(1, 0x1F00, 0x3F20),
    **_set(3, 0x2A80, 0x61F0),
}
_OUTPUT = {
    **_set(True, 0x330, 0xCB0, 0x1EC0, 0x33A0, 0x3CB0, 0x4C80, 0x5980),
    **_set(3, 0x1E40, 0x2740, 0x3C20, 0x44D0, 0x5810, 0x6360),
    **_set(False, 0x310),
    **_set(1, 0x31C0),
}
_PREFILL = {
    **_set(True, 0x3660, 0x40A0, 0xAD00),
    **_set(7, 0x35D0, 0xAEE0),
}
_PREPARE = {
    **_set(True, 0x350, 0xA50, 0x1800, 0x1890, 0x2620, 0x9D80),
    **_set(-1, 0x17A0, 0x25C0),
    **_set(False, 0x320),
}

KERNELS: Mapping[str, Kernel] = {
    "verify_shared": Kernel(
        symbol="partial_kernel",
        threads=128,
        registers=172,
        shared=26240,
        cycles=17274,
        path=lambda w: Path(
            0xD480,
            {**_SCORES, 0x6370: w >= 1},
            scattered=frozenset({0x6840, 0x6850}),
            cached=frozenset({0x6610}),
        ),
    ),
    "verify_registers": Kernel(
        symbol="partial_kernel",
        threads=128,
        registers=172,
        shared=22144,
        cycles=12427,
        path=lambda w: Path(
            0xCEE0,
            {0x6390: w >= 1, 0x9B00: w % 2 == 1},
            scattered=frozenset({0x6860, 0x6870}),
            cached=frozenset({0x6630}),
        ),
    ),
    "prefill": Kernel(
        symbol="prefill",
        threads=128,
        registers=254,
        shared=50688,
        cycles=27318,
        path=lambda w: Path(0xAFB0, {**_PREFILL, 0x5D80: w >= 1, 0x90D0: w >= 1}, all_cached=True),
    ),
    "state_4": Kernel(
        symbol="state_kernel",
        threads=128,
        registers=130,
        shared=48128,
        cycles=75890,
        path=lambda w: Path(0x7AF0, _STATE_4),
    ),
    "state_16": Kernel(
        symbol="state_kernel",
        threads=512,
        registers=96,
        shared=48128,
        cycles=24398,
        path=lambda w: Path(0x6680, {**_STATE_16, 0x2AD0: w >= 8}),
    ),
    "output": Kernel(
        symbol="o_kernel",
        threads=256,
        registers=88,
        shared=45312,
        cycles=34181,
        path=lambda w: Path(None, {**_OUTPUT, 0x130: w >= 2}),
    ),
    "gdn_chunk_scan": Kernel(
        symbol="chunk_scan_kernelILi128E",
        threads=256,
        registers=222,
        shared=50176,
        cycles=4484,
        path=lambda w: Path(0x3A40 if w < 4 else 0x5250, all_cached=True),
    ),
    "gdn_chunk_prepare": Kernel(
        symbol="chunk_prepare_kernelILi128E",
        threads=128,
        registers=154,
        shared=25092,
        cycles=21476,
        path=lambda w: Path(None, {**_PREPARE, 0xC0: w >= 1, 0x3420: w == 3}),
    ),
    "gdn_decode_1": Kernel(
        symbol="decode_kernelILi128ELi4ELi1ELi1ELi1E",
        threads=128,
        registers=78,
        shared=2640,
        cycles=4857,
        path=lambda w: Path(),
        alone=True,
    ),
    "gdn_decode_4": Kernel(
        symbol="decode_kernelILi128ELi8ELi1ELi4ELi3E",
        threads=256,
        registers=78,
        shared=7744,
        cycles=10962,
        path=lambda w: Path(None, {0x5E10: 1}),
        alone=True,
    ),
    "attention_int4_5": Kernel(
        symbol="attention_kernelILNS0_6FormatE2ELi256ELi4E",
        threads=128,
        registers=231,
        shared=19712,
        cycles=4466,
        path=lambda w: Path(
            0xE950,
            {**_set(True, 0xB1D0, 0xB370, 0xDEE0, 0xE1C0), 0xB220: False},
            cached=frozenset({0xB400}),
        ),
    ),
    "attention_int4_1": Kernel(
        symbol="attention_kernelILNS0_6FormatE2ELi256ELi2E",
        threads=128,
        registers=204,
        shared=19712,
        cycles=2713,
        path=lambda w: Path(
            0xC960,
            {**_set(True, 0xA730, 0xA8A0, 0xC110, 0xC310), 0xA780: False},
            cached=frozenset({0xA930}),
        ),
    ),
    "attention_int8_5": Kernel(
        symbol="attention_kernelILNS0_6FormatE1ELi256ELi4E",
        threads=128,
        registers=205,
        shared=18048,
        cycles=2622,
        path=lambda w: Path(
            0x8830,
            {**_set(True, 0x6770, 0x68B0, 0x7FE0, 0x81E0), 0x67C0: False},
            cached=frozenset({0x6940}),
        ),
    ),
    "attention_fp8_5": Kernel(
        symbol="attention_kernelILNS0_6FormatE3ELi256ELi4E",
        threads=128,
        registers=188,
        shared=17408,
        cycles=3097,
        path=lambda w: Path(
            0x7090,
            {**_set(True, 0x4340, 0x6830, 0x6A30), 0x4390: False},
            cached=frozenset({0x58F0}),
        ),
    ),
    "attention_fp8_1": Kernel(
        symbol="attention_kernelILNS0_6FormatE3ELi256ELi2E",
        threads=128,
        registers=178,
        shared=17408,
        cycles=2767,
        path=lambda w: Path(
            0x5A00,
            {**_set(True, 0x3B40, 0x5440), 0x3B90: False},
            cached=frozenset({0x43C0}),
        ),
    ),
    "attention_half_5": Kernel(
        symbol="attention_kernelILNS0_6FormatE0ELi256ELi4E",
        threads=128,
        registers=222,
        shared=16896,
        cycles=5422,
        path=lambda w: Path(
            0x50B0,
            {**_set(True, 0x3F80, 0x4190, 0x4C40), 0x4C90: False},
            cached=frozenset({0x4EE0}),
        ),
    ),
    "attention_prefill_half_256": Kernel(
        symbol="prefill_kernelILNS_9attention6FormatE0ELi256E",
        threads=256,
        registers=254,
        shared=41984,
        cycles=4604,
        path=lambda w: Path(0x5800, _set(True, 0x3EF0, 0x40E0, 0x4790), all_cached=True),
    ),
    "attention_prefill_int8_256": Kernel(
        symbol="prefill_kernelILNS_9attention6FormatE1ELi256E",
        threads=256,
        registers=255,
        shared=42496,
        cycles=5000,
        path=lambda w: Path(0x6360, _set(True, 0x47B0, 0x49A0, 0x4FF0, 0x6220), all_cached=True),
    ),
    "attention_prefill_int4_256": Kernel(
        symbol="prefill_kernelILNS_9attention6FormatE2ELi256E",
        threads=256,
        registers=255,
        shared=42496,
        cycles=4847,
        path=lambda w: Path(0xF770, _set(True, 0xDA90, 0xDC80, 0xE2D0, 0xF620), all_cached=True),
    ),
    "attention_prefill_half_128": Kernel(
        symbol="prefill_kernelILNS_9attention6FormatE0ELi128E",
        threads=256,
        registers=246,
        shared=50176,
        cycles=4941,
        path=lambda w: Path(0x4AA0, _set(True, 0x2B00, 0x2CF0, 0x3640, 0x3EC0), all_cached=True),
    ),
    "attention_prefill_int4_128": Kernel(
        symbol="prefill_kernelILNS_9attention6FormatE2ELi128E",
        threads=256,
        registers=250,
        shared=50688,
        cycles=5026,
        path=lambda w: Path(
            0xD700, _set(True, 0xB4B0, 0xB670, 0xBFC0, 0xC630, 0xD5B0), all_cached=True
        ),
    ),
    "lm_head_8": Kernel(
        symbol="lm_head_kernelILi1E",
        threads=128,
        registers=118,
        shared=8704,
        cycles=11437,
        path=lambda w: Path(0x1700, cached=frozenset({0x540, 0x570})),
    ),
    "lm_head_16": Kernel(
        symbol="lm_head_kernelILi2E",
        threads=128,
        registers=160,
        shared=17408,
        cycles=8573,
        path=lambda w: Path(0x1A70, cached=frozenset({0x620, 0x680, 0x6A0, 0x6C0})),
    ),
}
OURS = {
    k: re.sub(r"(prefill)_.*$|_(1|4|5|8|16)$", r"\1", f"csrc/src/{k}") + ".cu"
    for k in KERNELS
    if k.startswith(("gdn", "attention", "lm_head"))
}
