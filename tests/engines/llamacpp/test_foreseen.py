"""Plans of llama.cpp that no start can serve: what is missing, and what would help."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

from rich.console import Console

from caovand.cli.common.planned import PlannedEngine
from caovand.cli.plan import show_memory
from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.facts.inventory import Inventory
from caovand.engines.common.gguf.estimate import LESS_CACHE
from caovand.engines.llamacpp.engine import ENGINE
from tests.engines.llamacpp.machines import HOST, MOE_30B, QWEN_8B, machine, plan

TINY_HOST = replace(HOST, ram_mib=8192, available_mib=7000)
TOO_LARGE = machine(MOE_30B, 8192, host=TINY_HOST)
"""Some 17 GiB of weights for 8 GiB of GPU memory and 8 GiB of RAM."""


def forecast(inventory: Inventory, **sections: Any) -> MemoryEstimate:
    return ENGINE.planning.forecast(plan(inventory, **sections), inventory)


def test_weights_that_neither_cards_nor_memory_hold_are_refused() -> None:
    found = ENGINE.planning.foreseen(plan(TOO_LARGE), TOO_LARGE)
    assert found is not None
    assert found.finding.failure == "host-oom"
    assert "more than available" in found.finding.text
    assert "--load-mode mmap" in found.finding.text
    assert "tokens/s" not in plan(TOO_LARGE).settings["gpu_layers"].reason


def test_weights_read_from_the_disk_or_from_swap_start() -> None:
    mapped = plan(TOO_LARGE, engine={"extra_args": ["--load-mode", "mmap"]})
    assert ENGINE.planning.foreseen(mapped, TOO_LARGE) is None
    swapping = replace(TOO_LARGE, host=replace(TINY_HOST, swap_mib=65536))
    assert ENGINE.planning.foreseen(plan(swapping), swapping) is None
    fitting = machine(MOE_30B, 8192)
    assert ENGINE.planning.foreseen(plan(fitting), fitting) is None


def test_only_what_covers_the_shortage_is_advised() -> None:
    short = forecast(TOO_LARGE)
    assert short.fits is False
    (advice,) = short.advice
    assert advice.startswith("a GGUF file quantised to fewer bits, or of a smaller model: at most ")
    long = forecast(machine(QWEN_8B, 8192), model={"max_model_len": 32768}, policy={
        "max_num_seqs": 8, "kv_cache_dtype": "f16",
    }, engine={"extra_args": ["--gpu-layers", "99"]})  # fmt: skip
    assert long.fits is False
    assert LESS_CACHE in long.advice


def test_host_memory_is_drawn_apart_from_the_cards() -> None:
    made = plan(TOO_LARGE)
    memory = ENGINE.planning.forecast(made, TOO_LARGE)
    assert sum(size for _, size in memory.parts) <= 8192
    out = io.StringIO()
    command = ENGINE.planning.command(made, TOO_LARGE.engine, "/cache")
    found = PlannedEngine(made, command, memory, TOO_LARGE, TOO_LARGE.gpus)
    show_memory(found, memory, Console(file=out, width=100, highlight=False, soft_wrap=True))
    gpu, _, ram, _ = out.getvalue().splitlines()[:4]
    assert gpu.startswith("GPU 0")
    assert "short" not in gpu
    assert ram.startswith("RAM")
    assert ram.endswith("GiB short")
    assert forecast(machine(QWEN_8B, 24576)).host_parts == ()
