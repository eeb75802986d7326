"""Another process on the card, and the card's memory in use."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from caovand.adapters.gpu import nvml_library
from tests.cards.conftest import CARD

NEIGHBOUR = """
import ctypes, sys

cuda, left = ctypes.CDLL("libcuda.so.1"), int(sys.argv[1]) << 20
device, context, place = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert not cuda.cuInit(0)
assert not cuda.cuDeviceGet(ctypes.byref(device), 0)
assert not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
assert not cuda.cuCtxSetCurrent(context)
for mib in (256, 32, 4):
    while True:
        assert not cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        if free.value < left + (mib << 20):
            break
        if cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(mib << 20)):
            break
print("taken", flush=True)
sys.stdin.read()
"""
"""Takes a card's memory but so many MiB until its input ends."""


def card_mib() -> int:
    """Memory in use on the card."""
    nvml = nvml_library.pynvml()
    nvml.nvmlInit()
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(CARD)).used >> 20)
    finally:
        nvml.nvmlShutdown()


@contextlib.contextmanager
def neighbour(left_mib: int = 0) -> Iterator[subprocess.Popen[str]]:
    """Another process that has all memory that is free but so much."""
    words = [sys.executable, "-c", NEIGHBOUR, str(left_mib)]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": str(CARD)}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, env=env, **pipes) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "taken\n"
            yield other
        finally:
            other.kill()
