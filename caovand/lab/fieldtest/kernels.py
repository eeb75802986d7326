"""Measure caovan's kernels on this machine's card: errors against float64, times against vLLM's
kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from caovand.adapters.engine_install.commands import run
from caovand.core.facts.inventory import EngineInfo, Gpu

MODULE = "caovan_vllm_sm75_turbo3.measure"
PROGRAM = "import runpy, sys; sys.path.pop(0); runpy.run_module({module!r}, run_name='__main__')"
"""The engine's own Python finds its packages whatever the caller's variables are."""
PARTS = (
    ("check", "correctness against float64"),
    ("bench", "timings, next to vLLM's kernels in the same run"),
    ("attention", "attention: correctness against float64, and timings"),
    ("prefill_attention", "attention of prompts: correctness and timings"),
)


def measure(engine: EngineInfo, gpu: Gpu, say: Callable[[str], None]) -> dict[str, Any]:
    """Run each part on one card; return the parts' output."""
    env = {"CUDA_VISIBLE_DEVICES": gpu.uuid or str(gpu.index), "PYTHONPATH": ""}
    parts = []
    for name, title in PARTS:
        say(f"      kernels: {title}")
        words = [engine.python, "-c", PROGRAM.format(module=f"{MODULE}.{name}")]
        done = run(words, env, lambda: None)
        parts.append({"title": title, "code": done.code, "text": done.output})
    return {"why": "", "parts": parts}
