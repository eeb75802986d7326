"""`python -m tests.bench.explain [MIB]`: the cost of explaining a log of several months."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.daemon_process import ROOT

START = ROOT / "tests/samples/logs/vllm-0.21.0-h200-q27_mtp3.log"
WORK = (
    '(APIServer pid=3) INFO:     127.0.0.1:40{:03} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    "(APIServer pid=3) INFO 11-20 09:00:00 [loggers.py:271] Engine 000: Avg prompt throughput: 1.0"
    " tokens/s, Avg generation throughput: 20.1 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV"
    " cache usage: 0.1%, Prefix cache hit rate: 0.0%\n"
)
END = (
    "(EngineCore pid=2) ERROR 11-20 09:20:02 [core.py:1142] torch.OutOfMemoryError: CUDA out of"
    " memory. Tried to allocate 2.00 GiB. GPU 0 has a total\n"
)


def make_log(path: Path, mib: int) -> None:
    """A start, requests and statistics, and a failure at the end."""
    with path.open("w", encoding="utf-8") as log:
        written = log.write(START.read_text(encoding="utf-8"))
        block = "".join(WORK.format(number) for number in range(1000))
        while written < mib << 20:
            written += log.write(block)
        log.write(END)


def main() -> None:
    """Measure and print one line."""
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with tempfile.TemporaryDirectory(prefix="caovan-bench-") as place:
        path = Path(place) / "engine.log"
        make_log(path, mib)
        command = [sys.executable, "-m", "caovand.cli.main", "explain", str(path), "--json"]
        begin = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
            assert child.stdout is not None
            told = json.load(child.stdout)
            _, _, used = os.wait4(child.pid, 0)
            child.returncode = 0
        took = time.perf_counter() - begin
    assert told["failure"] == "device-oom-run", told["failure"]
    cpu = used.ru_utime + used.ru_stime
    print(f"explain a log of {mib} MiB: {took:.2f} s, {cpu:.2f} s of CPU, goal 5 s")
    print(f"peak memory: {used.ru_maxrss / 1024:.0f} MiB, goal 60 MiB")


if __name__ == "__main__":
    main()
