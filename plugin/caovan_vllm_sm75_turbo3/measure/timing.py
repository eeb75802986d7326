"""Parts shared by measurements: medians, the card's own rates, a program of cases and a table."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch

from caovan_vllm_sm75_turbo3 import launch

DEVICE = torch.device("cuda")


def median_us(calls: list[Callable[[], None]], *, graph: bool = True, repeats: int = 7) -> float:
    """Microseconds per call; `calls` do the same work on different inputs, run in turn."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    run: Callable[[], object] = lambda: [call() for call in calls]  # noqa: E731
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            run()
        run = captured.replay
    times = []
    for _ in range(repeats + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(calls))
    return statistics.median(times[2:])


def copy_rate(repeats: int = 7) -> float:
    """Bytes/s of a large copy, counting reads and writes."""
    x = torch.empty(2**30, dtype=torch.uint8, device=DEVICE)
    y = torch.empty_like(x)
    return 2 * x.numel() / median_us([lambda: y.copy_(x)], graph=False, repeats=repeats) * 1e6


def product_rate(repeats: int = 7) -> float:
    """FLOP/s of a large fp16 matrix product."""
    a, b = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.float16) for _ in range(2))
    return 2 * 8192**3 / median_us([lambda: torch.mm(a, b)], graph=False, repeats=repeats) * 1e6


def measure(
    check_all: Callable[[], None],
    time_all: Callable[[], None],
    failures: Sequence[str],
    **others: Callable[[], None],
) -> None:
    """Check and time, or do what the first argument names: "check", "time" or one of `others`.

    Exits with 1 on failures.
    """
    torch.manual_seed(0)
    began = time.monotonic()
    launch.prepare(torch.device("cuda", torch.cuda.current_device()))
    print(f"kernels loaded after {time.monotonic() - began:.1f} s")
    what = sys.argv[1] if len(sys.argv) > 1 else ""
    if what not in ("", "check", "time", *others):
        sys.exit(f"cannot measure {what!r}: it must be check, time{', '.join(['', *others])}")
    if what != "time":
        others.get(what, check_all)()
        print(f"{'FAILED: ' + ', '.join(failures) if failures else 'all cases pass'}, "
              f"{time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
    if what in ("", "time"):
        time_all()
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(bool(failures))
