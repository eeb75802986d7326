"""The speed of the host's memory: measured once in a process of its own, and kept.

Copies between buffers larger than any cache, one thread a core, is what engines reach that read
weights from host memory: each byte copied is read once and written once.
"""

from __future__ import annotations

import ctypes
import math
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from caovand import HOME
from caovand.adapters.files import state_file
from caovand.core.facts.inventory import Host

FILE = "memory-speed.json"
LIMIT_S = 30.0
ROUNDS = 4
BUFFER_MIB = 64
MAX_MIB = 1024
"""All buffers together: many cores have smaller ones each."""
PROGRAM = """
import sys
sys.path.append(sys.argv[1])
from caovand.adapters.system import memory_speed
print(memory_speed.copy_gb_s(int(sys.argv[2])))
"""
SLOWEST, FASTEST = 0.1, 10_000.0
"""GB/s of any machine there is; anything else is no measurement."""


def with_memory_speed(host: Host, *folders: Path, measure_in: Path | None = None) -> Host:
    """The host with the speed kept in one of the folders, else as measured now and kept there."""
    speed = _kept(host, folders)
    if speed is None and measure_in is not None:
        speed = _measured(host, measure_in)
    return replace(host, memory_gb_s=speed)


def _kept(host: Host, folders: tuple[Path, ...]) -> float | None:
    for folder in folders:
        found = state_file.read_or_none(folder / FILE)
        if isinstance(found, dict) and found.get("machine") == _machine(host):
            speed = found.get("gb_s")
            if isinstance(speed, float) and SLOWEST <= speed <= FASTEST:
                return speed
    return None


def _measured(host: Host, folder: Path) -> float | None:
    command = [sys.executable, "-I", "-c", PROGRAM, HOME, str(host.cpus)]
    try:
        done = subprocess.run(command, cwd="/", timeout=LIMIT_S, capture_output=True, check=True)
        speed = float(done.stdout)
        if not SLOWEST <= speed <= FASTEST:
            return None
        state_file.write(folder / FILE, {"machine": _machine(host), "gb_s": speed})
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return speed


def _machine(host: Host) -> dict[str, Any]:
    """Identify the machine: the measurement is of these cores and this memory."""
    return {"cpus": host.cpus, "ram_mib": host.ram_mib}


def copy_gb_s(threads: int) -> float:
    """GB/s of the quickest of ROUNDS copies by `threads` threads at once."""
    size = min(BUFFER_MIB, MAX_MIB // (2 * threads)) << 20
    buffers = [[ctypes.create_string_buffer(size) for _ in range(2)] for _ in range(threads)]
    for pair in buffers:
        for one in pair:
            ctypes.memset(one, 1, size)  # its pages are there before the clock runs
    return max(2 * threads * size / _seconds(buffers, size) / 1e9 for _ in range(ROUNDS))


def _seconds(buffers: list[Any], size: int) -> float:
    start = threading.Barrier(len(buffers) + 1)

    def copy(source: Any, target: Any) -> None:
        start.wait()
        ctypes.memmove(target, source, size)  # other threads run meanwhile

    workers = [threading.Thread(target=copy, args=pair) for pair in buffers]
    for worker in workers:
        worker.start()
    start.wait()
    began = time.perf_counter()
    for worker in workers:
        worker.join()
    return max(time.perf_counter() - began, math.ulp(1.0))
