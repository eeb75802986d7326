"""The time of a launch: the cycles of its CTAs, times the number of waves."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from card_model import card
from card_model.kernels import KERNELS

_TILE_32, _TILE_256 = 131_072 // 32, 131_072 // 256  # tiles of 131,072 keys
_KV_HEADS, _HEADS, _GROUP = 4, 24, 6
_PACKED, _UNPACKED = 264, 1024  # bytes per key and value, int4 with scales and fp16


@dataclass(frozen=True)
class Prediction:
    what: str
    predicted_ms: float
    measured_ms: float

    @property
    def error(self) -> float:
        return self.predicted_ms / self.measured_ms - 1


def launch_ms(name: str, ctas: int, laps: float = 1) -> float:
    kernel = KERNELS[name]
    waves = -(-ctas // (card.SMS * kernel.resident))
    return waves * laps * kernel.cycles / card.CLOCK_GHZ / 1e6


def copy_ms(size: float) -> float:
    """The time to copy this many bytes, reads and writes together."""
    return size / card.COPY_GB_S / 1e6


def split_kv_ms(name: str, queries: int, segments: Sequence[int]) -> float:
    """Attention of some queries to 131,072 keys, with 32 rows per CTA and the best number of
    segments."""
    tiles = -(-queries // (32 // _GROUP))
    return min(launch_ms(name, tiles * _KV_HEADS * n, _TILE_32 // n) for n in segments)


def gathered_ms(queries: int) -> float:
    """The same keys, unpacked to fp16, then processed 32 queries by 256 keys at a time."""
    unpacking = copy_ms(131_072 * _KV_HEADS * (_PACKED + _UNPACKED))
    return unpacking + launch_ms("prefill", -(-queries // 32) * _HEADS, _TILE_256)


def weights_gb(*, lm_head_bytes: float) -> float:
    """What a step of the 27B reads: int4 weights in groups of 128, and the head."""
    hidden, layers, vocabulary = 5120, 64, 248_320
    mlp = 3 * hidden * 17_408 * layers
    gdn = 48 * hidden * (2 * 2048 + 3 * 6144 + 96)
    attention = 16 * hidden * (2 * 6144 + 2 * 1024 + 6144)
    return (
        (mlp + gdn + attention) * (4 + 16 / 128) / 8 + hidden * vocabulary * lm_head_bytes
    ) / 1e9


def published() -> tuple[Prediction, ...]:
    """Every predictable time measured on a real card: of a layer, or of a step's weights."""
    sweep = (8, 16, 32, 64)
    return (
        Prediction(
            "verify attention, scores in shared memory",
            split_kv_ms("verify_shared", 5, [32]),
            1.726,
        ),
        Prediction(
            "the same, scores in registers", split_kv_ms("verify_registers", 5, [32]), 1.223
        ),
        *(
            Prediction(
                f"split-KV extend, {n} queries", split_kv_ms("verify_registers", n, sweep), ms
            )
            for n, ms in ((16, 4.67), (32, 8.14), (64, 14.61), (256, 55.40))
        ),
        *(
            Prediction(f"gathered extend, {n} queries", gathered_ms(n), ms)
            for n, ms in ((16, 9.67), (32, 9.78), (64, 9.98), (256, 28.04))
        ),
        Prediction(
            "prefill attention", launch_ms("prefill", 64 * _HEADS, (253_952 - 1024) / 256), 402.1
        ),
        Prediction("chunk state, 4 warps", launch_ms("state_4", 48 * 4, 32), 5.67),
        Prediction("chunk state, 16 warps", launch_ms("state_16", 48 * 4, 32), 1.98),
        Prediction("chunk output", launch_ms("output", 512 * 48 * 2), 14.8),
        Prediction("weights of a step", copy_ms(weights_gb(lm_head_bytes=2) * 1e9), 24),
    )


def gdn_prefill_us(value_heads: int) -> tuple[float, float]:
    """Our gdn_chunk_scan and gdn_chunk_prepare, per token of one long sequence and layer."""
    chunks = 1024
    scan = launch_ms("gdn_chunk_scan", value_heads * 2, chunks)
    prepare = launch_ms("gdn_chunk_prepare", chunks * value_heads // 3)
    return scan / chunks / 32 * 1e3, prepare / chunks / 32 * 1e3


def gdn_decode_us(tokens: int, value_heads: int = 24) -> tuple[float, float]:
    """Our gdn_decode for one sequence: the state at the copy rate, and the time of a CTA alone."""
    state = value_heads * 128 * 128 * 4
    return copy_ms(state * (1 + tokens)) * 1e3, launch_ms(f"gdn_decode_{tokens}", 1) * 1e3


@dataclass(frozen=True)
class Attention:
    kernel: str
    what: str
    tile: int
    """Keys."""
    record: int
    """Bytes per key and value."""
    start: int
    """Cycles outside the laps, from counts of whole CTAs with 2 and 6 laps: rotating and rounding
    queries, the first tiles of all concurrent CTAs, writing the output."""


ATTENTION = (
    Attention("attention_int4_5", "int4, 5 tokens", 32, _PACKED, 21_311),
    Attention("attention_int4_1", "int4, 1 token", 32, _PACKED, 20_000),
    Attention("attention_int8_5", "int8, 5 tokens", 16, 520, 20_000),
    Attention("attention_half_5", "fp16, 5 tokens", 16, _UNPACKED, 22_645),
    Attention("attention_fp8_5", "fp8, 5 tokens", 16, 512, 22_322),
    Attention("attention_fp8_1", "fp8, 1 token", 16, 512, 22_327),
)


def attention_us(a: Attention, keys: int) -> float:
    """One sequence and layer with 4 KV heads: as many segments as fill the card once, and their
    reduction."""
    kernel = KERNELS[a.kernel]
    segments = card.SMS * kernel.resident // _KV_HEADS
    tiles = -(-keys // a.tile)
    laps = -(-tiles // segments)
    memory = kernel.resident * a.tile * a.record * card.dram_cycles_a_byte(card.SMS)
    cycles = a.start + laps * max(kernel.cycles, memory)
    partial = segments * _KV_HEADS * 32 * (256 * 2 + 16)  # written, then read back
    return cycles / card.CLOCK_GHZ / 1e3 + copy_ms(2 * partial) * 1e3


def attention_table() -> str:
    """The notebook's table of attention: microseconds, and the share of the copy rate."""
    lengths = (16_384, 65_536, 131_072, 262_144)
    rows = [
        f"| cache | {' | '.join(f'{n:,} keys' for n in lengths)} |",
        "| --- |" + " --- |" * len(lengths),
    ]
    for a in ATTENTION:
        cells = []
        for keys in lengths:
            us = attention_us(a, keys)
            copied = copy_ms(keys * _KV_HEADS * a.record) * 1e3
            cells.append(f"{us:.0f}, {copied / us:.0%}")
        rows.append(f"| {a.what} | {' | '.join(cells)} |")
    return "\n".join(rows)


@dataclass(frozen=True)
class PrefillAttention:
    kernel: str
    what: str
    heads: int
    kv_heads: int
    dim: int
    start: int
    """Cycles of a CTA outside the laps: reading and rotating queries, writing the output."""


PREFILL_ATTENTION = (
    PrefillAttention("attention_prefill_half_256", "fp16, 256, 24 / 4", 24, 4, 256, 15_978),
    PrefillAttention("attention_prefill_int8_256", "int8, 256, 24 / 4", 24, 4, 256, 16_044),
    PrefillAttention("attention_prefill_int4_256", "int4, 256, 24 / 4", 24, 4, 256, 37_796),
    PrefillAttention("attention_prefill_half_128", "fp16, 128, 32 / 8", 32, 8, 128, 15_413),
    PrefillAttention("attention_prefill_int4_128", "int4, 128, 32 / 8", 32, 8, 128, 28_851),
)


def prefill_attention_ms(a: PrefillAttention, tokens: int, prefix: int) -> float:
    """One sequence and layer: the longest CTAs go first, each to the first free SM."""
    group, rows = a.heads // a.kv_heads, 128 * 256 // a.dim
    free = [0] * card.SMS
    for block in reversed(range(-(-tokens * group // rows))):
        last = min((block + 1) * rows, tokens * group) - 1
        laps = -(-(prefix + last // group + 1) // 16)
        for _ in range(a.kv_heads):
            heapq.heapreplace(free, free[0] + a.start + laps * KERNELS[a.kernel].cycles)
    return max(free) / card.CLOCK_GHZ / 1e6


def prefill_attention_table() -> str:
    """The notebook's table of prefill attention: milliseconds, and the share of HMMA's rate."""
    sizes = ((512, 0), (2048, 0), (2048, 30_720), (2048, 120_832), (2048, 251_904))
    rows = [
        f"| cache, head size, heads | {' | '.join(f'{n:,} behind {m:,}' for n, m in sizes)} |",
        "| --- |" + " --- |" * len(sizes),
    ]
    limit = card.SMS * card.PARTITIONS * 2 * 16 * 8 * 8 / card.HMMA_F32 * card.CLOCK_GHZ * 1e9
    for a in PREFILL_ATTENTION:
        cells = []
        for tokens, prefix in sizes:
            ms = prefill_attention_ms(a, tokens, prefix)
            flop = 4 * a.dim * a.heads * tokens * (prefix + (tokens + 1) / 2)
            digits = 2 if ms < 10 else 0
            cells.append(f"{ms:.{digits}f}, {flop / ms * 1e3 / limit:.0%}")
        rows.append(f"| {a.what} | {' | '.join(cells)} |")
    return "\n".join(rows)


def extension_segments(ctas: int, room: int) -> int:
    """The number of segments, as csrc/src/attention_launch.cuh chooses it."""
    return min(
        (n for n in range(1, 257) if n == 1 or n * ctas <= 4 * room),
        key=lambda n: (-(-n * ctas // room) / n, n),
    )


def extension_ms(a: Attention, tokens: int, keys: int) -> float:
    """New tokens after a prefix, with the kernel that splits keys: 32 rows per CTA, whole waves."""
    kernel = KERNELS[a.kernel]
    ctas, room = -(-tokens * _GROUP // 32) * _KV_HEADS, card.SMS * kernel.resident
    segments = extension_segments(ctas, room)
    tiles = -(-keys // a.tile)
    laps = -(-tiles // segments)
    memory = kernel.resident * a.tile * a.record * card.dram_cycles_a_byte(card.SMS)
    cycles = a.start + laps * max(kernel.cycles, memory)
    partial = segments * ctas * 32 * (256 * 2 + 16)
    return -(-ctas * segments // room) * cycles / card.CLOCK_GHZ / 1e6 + copy_ms(2 * partial)


def extension_table() -> str:
    """The notebook's table of extensions to 131,072 keys: split, and by prefill attention."""
    counts = (16, 32, 64, 128, 256)
    rows = [
        f"| cache | {' | '.join(f'{n} tokens' for n in counts)} |",
        "| --- |" + " --- |" * len(counts),
    ]
    for a, b in zip(
        (ATTENTION[0], ATTENTION[2], ATTENTION[3]),
        (PREFILL_ATTENTION[2], PREFILL_ATTENTION[1], PREFILL_ATTENTION[0]),
        strict=True,
    ):
        cells = (
            f"{extension_ms(a, n, 131_072):.1f} / {prefill_attention_ms(b, n, 131_072 - n):.1f}"
            for n in counts
        )
        rows.append(f"| {a.what.partition(',')[0]} | {' | '.join(cells)} |")
    return "\n".join(rows)


_LM_HEAD_START = {8: 13_857, 16: 11_432}
"""Cycles outside the laps, from counts of whole CTAs with 10 and 20 laps: the first steps of all
concurrent CTAs, the reduction, and the output."""


def lm_head_us(rows: int, vocabulary: int = 248_320, hidden: int = 5120) -> float:
    """The logits of up to 8 or 16 rows from int8 weights; each SM runs one CTA at a time."""
    kernel = KERNELS[f"lm_head_{rows}"]
    laps = -(-vocabulary // 64) * -(-hidden // 256) / (card.SMS * kernel.resident)
    logits = copy_ms(vocabulary * (rows * 2 + 4)) * 1e3
    return (_LM_HEAD_START[rows] + laps * kernel.cycles) / card.CLOCK_GHZ / 1e3 + logits


def lm_head_table() -> str:
    """The notebook's table of logits: microseconds, and the weights' share of the copy rate."""
    rows = ["| vocabulary x hidden | up to 8 rows | up to 16 | fp16 at the copy rate |"]
    rows.append("| --- " * 4 + "|")
    for vocabulary, hidden in ((248_320, 5120), (151_936, 2560), (32_768, 5120)):
        copied = copy_ms(vocabulary * hidden) * 1e3
        times = [lm_head_us(n, vocabulary, hidden) for n in (8, 16)]
        cells = [f"{us:.0f}, {copied / us:.0%}" for us in times]
        rows.append(f"| {vocabulary:,} x {hidden} | {' | '.join(cells)} | {2 * copied:.0f} |")
    return "\n".join(rows)


def our_table() -> str:
    """The notebook's table of our kernels, in microseconds."""
    rows = ["| | 24 value heads | 48 value heads |", "| --- | --- | --- |"]
    few, many = gdn_prefill_us(24), gdn_prefill_us(48)
    rows += [
        f"| {name}, a token | {a:.3f} | {b:.3f} |"
        for name, a, b in zip(("gdn_chunk_scan", "gdn_chunk_prepare"), few, many, strict=True)
    ]
    rows.append(f"| **prefill, a token** | **{sum(few):.2f}** | **{sum(many):.2f}** |")
    for tokens in (1, 4):
        cells = (gdn_decode_us(tokens, heads) for heads in (24, 48))
        shown = (f"{max(c):.1f} to {sum(c):.1f}" for c in cells)
        rows.append(f"| decode, {tokens} token{'s' * (tokens > 1)} | {' | '.join(shown)} |")
    return "\n".join(rows)


def table() -> str:
    """The notebook's table of the published kernels."""
    rows = ["| | predicted, ms | measured, ms | error |", "| --- | --- | --- | --- |"]
    for p in published():
        digits = 3 if p.measured_ms < 3 else 2 if p.measured_ms < 100 else 0
        rows.append(
            f"| {p.what} | {p.predicted_ms:.{digits}f} | {p.measured_ms:g} | {p.error:+.0%} |"
        )
    return "\n".join(rows)
