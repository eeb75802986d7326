"""A vLLM plugin that fails the next step of an engine in the way that a file next to it names.

`test_faults.py` copies it into a folder that only its engines import from.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

ASKED = Path(__file__).with_name("fault")


def register() -> None:
    """Let each worker ask before each step; every process of the engine runs this."""
    from vllm.v1.worker import worker_base  # noqa: PLC0415

    plain = worker_base.WorkerWrapperBase.execute_model

    def execute_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        if ASKED.exists():
            fault = ASKED.read_text()
            ASKED.unlink()
            FAULTS[fault]()
        return plain(self, *args, **kwargs)

    worker_base.WorkerWrapperBase.execute_model = execute_model


def illegal_access() -> None:
    from stray import stray  # noqa: PLC0415

    stray[(1,)](torch.zeros(1, dtype=torch.int32, device="cuda"), 1 << 40)


def device_assert() -> None:
    torch.zeros(4, device="cuda")[torch.full((1,), 9, device="cuda")]


def out_of_memory() -> None:
    taken = []
    while True:
        taken.append(torch.empty(1 << 28, dtype=torch.uint8, device="cuda"))


def segmentation_fault() -> None:
    ctypes.string_at(0)


def exit_0() -> None:
    os._exit(0)


def exception() -> None:
    raise RuntimeError("cannot run this step: a test asked for it")


FAULTS: Mapping[str, Callable[[], None]] = {
    one.__name__: one
    for one in (
        illegal_access, device_assert, out_of_memory, segmentation_fault, exit_0, exception
    )
}  # fmt: skip
