"""The speed of the host's memory: measured once in a separate process, and saved.

Copies between buffers larger than any cache, with one thread a core, reach the same speed as
engines that read weights from host memory: each copied byte is read once and written once.
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
"""Size of all buffers together: with many cores each is smaller."""
PROGRAM = """
import sys
sys.path.append(sys.argv[1])
from caovand.adapters.system import memory_speed
print(memory_speed.copy_gb_s(int(sys.argv[2])))
"""
SLOWEST, FASTEST = 0.1, 10_000.0
"""Plausible GB/s for any machine; anything else is not a measurement."""


def with_memory_speed(host: Host, *folders: Path, measure_in: Path | None = None) -> Host:
    """The host with the speed saved in one of the folders, or else measured now and saved there."""
    speed = _read_saved(host, folders)
    if speed is None and measure_in is not None:
        speed = _measure(host, measure_in)
    return replace(host, memory_gb_s=speed)


def _read_saved(host: Host, folders: tuple[Path, ...]) -> float | None:
    for folder in folders:
        measured = state_file.read_or_none(folder / FILE)
        if isinstance(measured, dict) and measured.get("machine") == _machine(host):
            speed = measured.get("gb_s")
            if isinstance(speed, float) and SLOWEST <= speed <= FASTEST:
                return speed
    return None


def _measure(host: Host, folder: Path) -> float | None:
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
    """Identify the machine: a measurement is valid for its cores and memory."""
    return {"cpus": host.cpus, "ram_mib": host.ram_mib}


def copy_gb_s(threads: int) -> float:
    """GB/s of the fastest of ROUNDS copies by `threads` parallel threads."""
    size = min(BUFFER_MIB, MAX_MIB // (2 * threads)) << 20
    buffers = [[ctypes.create_string_buffer(size) for _ in range(2)] for _ in range(threads)]
    for pair in buffers:
        for buffer in pair:
            ctypes.memset(buffer, 1, size)  # its pages are mapped before the clock starts
    return max(2 * threads * size / _seconds(buffers, size) / 1e9 for _ in range(ROUNDS))


def _seconds(buffers: list[Any], size: int) -> float:
    start = threading.Barrier(len(buffers) + 1)

    def copy(source: Any, target: Any) -> None:
        start.wait()
        ctypes.memmove(target, source, size)  # releases the GIL: other threads run meanwhile

    workers = [threading.Thread(target=copy, args=pair) for pair in buffers]
    for worker in workers:
        worker.start()
    start.wait()
    began = time.perf_counter()
    for worker in workers:
        worker.join()
    return max(time.perf_counter() - began, math.ulp(1.0))
