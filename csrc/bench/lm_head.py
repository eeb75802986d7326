"""Logits from int8 weights: every case against float64, then the table. Needs a GPU.

    python csrc/bench/lm_head.py [check | time]

Bounds are those of attention's kernels: relative error, and the largest error of an element over
|value| + rms. Rows and gaps that belong to nobody are poisoned. The table: microseconds a call,
medians of CUDA-graph replays over weights that no cache keeps, and the weights' bytes a second as a
share of the copy rate of the same run (read + write), next to torch's product of fp16 weights.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "plugin"))

from caovan_vllm_sm75_turbo3 import lm_head  # noqa: E402
from caovan_vllm_sm75_turbo3.measure import heads  # noqa: E402
from caovan_vllm_sm75_turbo3.measure.timing import (  # noqa: E402
    DEVICE,
    copy_rate,
    measure,
    median_us,
)

BOUNDS = (4e-4, 1e-3)
REPETITIONS = 2000
TILE_ROWS, SLICE = 64, 64  # of the vocabulary a CTA, of the hidden size a warp's step
failures: list[str] = []


def demand(name: str, what: str, holds: bool) -> None:
    if not holds:
        failures.append(f"{name}: {what}")
        print(f"FAILED {name}: {what}", flush=True)


def poisoned(rows: int, columns: int, gap: int) -> torch.Tensor:
    """NaN, in three rows and a gap that belong to nobody, too."""
    return torch.full((rows + 3, columns + gap), torch.nan, dtype=torch.float16, device=DEVICE)


def explain(error: torch.Tensor, want: torch.Tensor, got: torch.Tensor) -> None:
    """Print where the error is: the place of the largest, and which tiles are wrong."""
    bad = ~(error <= BOUNDS[1])
    at = int(error.nan_to_num(nan=torch.inf).argmax())
    row, v = divmod(at, error.shape[1])
    print(
        f"  largest at row {row}, vocabulary {v} (tile {v // TILE_ROWS}, place {v % TILE_ROWS}): "
        f"{got[row, v].item():.5g} for {want[row, v].item():.5g}"
    )
    print(f"  wrong: {bad.sum().item()} of {bad.numel()}; of rows {bad.sum(1).tolist()}")
    places = bad.any(0).nonzero().flatten()
    print(f"  places in tiles: {sorted({int(v) % TILE_ROWS for v in places.tolist()})}")
    print(f"  first tiles: {sorted({int(v) // TILE_ROWS for v in places.tolist()})[:16]}")


def locate(weight: torch.Tensor, scale: torch.Tensor, hidden: int, rows: int) -> None:
    """Print which slices of the hidden size are multiplied wrongly: one slice of ones at a time."""
    wrong = []
    for at in range(0, hidden, 8):
        x = torch.zeros(rows, hidden, dtype=torch.float16, device=DEVICE)
        x[:, at : at + 8] = 1
        out = torch.empty(rows, weight.shape[0], dtype=torch.float16, device=DEVICE)
        lm_head.logits(x, weight, scale, out)
        want = heads.logits(x, weight, scale)
        if not ((out - want).abs() <= 1e-3 * (want.abs() + want.square().mean().sqrt())).all():
            wrong.append(at)
    print(f"  columns (of eight) that are multiplied wrongly: {wrong[:64]}")


def check(
    name: str, rows: int, vocabulary: int, hidden: int, *, spread: float = 1, repeat: int = 5
) -> None:
    """Against float64; the same bits again, eagerly and from a graph whose inputs changed."""
    weight = torch.randint(-128, 128, (vocabulary, hidden + 16), dtype=torch.int8, device=DEVICE)
    weight = weight[:, :hidden]
    scale = torch.rand(vocabulary, device=DEVICE) * 1e-3
    whole_x, whole = poisoned(rows, hidden, 8), poisoned(rows, vocabulary, 3)
    x, out = whole_x[:rows, :hidden], whole[:rows, :vocabulary]
    x.copy_(torch.randn(rows, hidden, device=DEVICE) * spread)

    def run() -> None:
        lm_head.logits(x, weight, scale, out)

    run()
    want, got = heads.logits(x, weight, scale), out.clone()
    rms = want.square().mean().sqrt()
    difference = (got - want).abs()
    error = difference / (want.abs() + rms)
    relative = (difference.square().mean().sqrt() / rms).item()
    largest = error.nan_to_num(nan=torch.inf).max().item()
    right = relative <= BOUNDS[0] and largest <= BOUNDS[1]
    demand(name, f"error {relative:.2e} / {largest:.2e}", right)
    if not right:
        explain(error, want, got)
        locate(weight, scale, hidden, rows)
    outside = whole[rows:].isnan().all() & whole[:, vocabulary:].isnan().all()
    demand(name, "wrote outside", bool(outside))

    bits = got.view(torch.int16)
    other = torch.zeros((), dtype=torch.bool, device=DEVICE)
    for _ in range(repeat):
        out.fill_(torch.nan)
        run()
        other |= (out.contiguous().view(torch.int16) != bits).any()
    demand(name, f"other bits in {repeat} repetitions", not other.item())
    kept, graph = x.clone(), torch.cuda.CUDAGraph()
    x.zero_()
    with torch.cuda.graph(graph):
        run()
    x.copy_(kept)
    out.fill_(torch.nan)
    graph.replay()
    same = torch.equal(out.contiguous().view(torch.int16), bits)
    demand(name, "a graph that saw other inputs gives other bits", same)
    print(f"{name}: {relative:.1e} / {largest:.1e}", flush=True)


def check_quality() -> None:
    """The bits of the quantiser on the CPU and here, and how far int8 moves structured logits."""
    for kind, bounds in heads.BOUNDS.items():
        x, weight = heads.structured(kind, rows=16, vocabulary=20_000, hidden=5120, device="cuda")
        rows, scale = lm_head.quantise(weight)
        same = lm_head.quantise(weight[:500].cpu())
        demand(
            kind, "the quantiser's bits differ from the CPU's",
            torch.equal(same[0], rows[:500].cpu()) and torch.equal(same[1], scale[:500].cpu()),
        )  # fmt: skip
        moved = heads.movement(x, weight, rows, scale)
        demand(kind, f"{moved}", moved.relative <= bounds[0] and moved.largest <= bounds[1])
        print(
            f"int8, {kind}: logits move by {moved.relative:.2%} of their deviation, at most "
            f"{moved.largest:.1%}; {moved.top:.1%} of the top 20 stay"
        )


def check_all() -> None:
    print("relative and largest error; bounds", *BOUNDS)
    for rows in (1, 2, 5, 8, 9, 15, 16):
        check(f"{rows} rows of 5120", rows, 4096, 5120)
    check("columns that not all warps have", 5, 1024, 5120 + 64)
    check("a warp's only step", 3, 128, 64)
    check("a vocabulary that 64 does not divide", 16, 151_643 % 10_000, 2048)
    check("a vocabulary of 64", 16, 64, 4096)
    check("large sums", 4, 4096, 5120, spread=300)
    check(f"a whole 27B, {REPETITIONS // 20} times", 5, 248_320, 5120, repeat=REPETITIONS // 20)
    check(f"{REPETITIONS} times", 5, 32_000, 2048, repeat=REPETITIONS)
    check_quality()


def time_all() -> None:
    copy = copy_rate()
    name = torch.cuda.get_device_name()
    print(f"\n{name}, torch {torch.__version__}, copy {copy / 1e9:.0f} GB/s")
    print("| vocabulary x hidden | rows | us | GB/s | of copy | torch fp16, us | ratio |")
    print("| --- " * 7 + "|")
    for vocabulary, hidden in ((248_320, 5120), (151_936, 2560), (32_768, 5120)):
        size = vocabulary * hidden
        count = max(1, -(-(600 << 20) // size))  # weights that caches do not keep from call to call
        halves = [
            torch.randn(vocabulary, hidden, device=DEVICE, dtype=torch.float16).mul_(0.02)
            for _ in range(count)
        ]
        packed = [lm_head.quantise(w) for w in halves]
        for rows in (1, 2, 4, 5, 8, 12, 16):
            x = torch.randn(rows, hidden, device=DEVICE).half()
            out = torch.empty(rows, vocabulary, dtype=torch.float16, device=DEVICE)
            ours = median_us([partial(lm_head.logits, x, *p, out) for p in packed])
            theirs = median_us([partial(torch.mm, x, w.T, out=out) for w in halves])
            rate = size / ours * 1e6
            print(
                f"| {vocabulary:,} x {hidden} | {rows} | {ours:.1f} | {rate / 1e9:.0f} | "
                f"{rate / copy:.0%} | {theirs:.1f} | {theirs / ours:.2f} |",
                flush=True,
            )
        began = time.monotonic()
        lm_head.quantise(halves[0])
        torch.cuda.synchronize()
        print(f"quantising {vocabulary:,} x {hidden}: {time.monotonic() - began:.3f} s")
        del halves, packed


if __name__ == "__main__":
    measure(check_all, time_all, failures)
