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
POISON = "drafts: "
"""Begins a fault of each proposal of drafts, of every engine until the file is removed."""


def register() -> None:
    """Let each worker ask before each step; every process of the engine runs this."""
    from vllm.v1.worker import worker_base  # noqa: PLC0415

    plain = worker_base.WorkerWrapperBase.execute_model

    def execute_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        if ASKED.exists():
            fault = ASKED.read_text()
            if fault.startswith(POISON):
                poison(self.worker.model_runner, FAULTS[fault.removeprefix(POISON)])
            else:
                ASKED.unlink()
                FAULTS[fault]()
        return plain(self, *args, **kwargs)

    worker_base.WorkerWrapperBase.execute_model = execute_model


def poison(runner: Any, fault: Callable[[], None]) -> None:
    """Have each proposal of drafts fail, which an engine without them never makes."""
    # vLLM's second model runner has another name for it.
    drafter = getattr(runner, "speculator", None) or getattr(runner, "drafter", None)
    if drafter is not None and "propose" not in vars(drafter):
        plain = drafter.propose

        def propose(*args: Any, **kwargs: Any) -> Any:
            fault()
            return plain(*args, **kwargs)

        drafter.propose = propose


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
