"""One card and two: forecasts of memory against what vLLM finds, for shapes not forecast before.

Each shape is planned as `caovanctl plan` does it and started by the planned command until it
answers; then once more with all compiled where CAOVAN_CARDS_WARM=1. A row is printed at each start.
A first start, whose compiling takes memory, is held to the planner's forecast of first starts.
CAOVAN_CARDS_ENGINE's Python runs the engine; nothing else may use the cards.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from caovand.cli.common.planned import PlannedEngine
from caovand.core.facts.forecast import MemoryEstimate
from caovand.engines.vllm.memory.estimate import estimate
from caovand.engines.vllm.memory.settings import candidate_of_plan, cards_of_plan
from tests.cards.conftest import CACHE, EAGER
from tests.cards.shapes import SHAPES
from tests.cards.starts import planned, started

MAX_OFF, MAX_GIB_TOO_MUCH = 0.02, 0.3
FOUND = {
    "weights GiB": r"Model loading took ([\d.]+) GiB",
    "cache GiB": r"Available KV cache memory: ([\d.]+) GiB",
    "cache tokens": r"KV cache size: ([\d,]+) tokens",
    "graphs GiB": r"Graph capturing finished in .* took (-?[\d.]+) GiB",
    "activations GiB": r"([\d.]+) GiB for peak activation",
    "with context GiB": r"([\d.]+) GiB for consumed memory",
    "profile s": r"[Pp]rofiling.* took ([\d.]+) s",
    "start s": r"init engine \(.*\) took ([\d.]+) s",
}
WAYS = ("cold", "warm") if os.environ.get("CAOVAN_CARDS_WARM") == "1" else ("cold",)


def of_first_start(found: PlannedEngine) -> MemoryEstimate:
    """The forecast of a start that compiles its steps."""
    plan, inventory = found.plan, found.inventory
    candidate = candidate_of_plan(plan, inventory).but(cold=not EAGER)
    return estimate(inventory.model, candidate, cards_of_plan(plan, inventory))


def forecast(memory: MemoryEstimate) -> dict[str, float]:
    """What is foreseen of the figures in `FOUND`."""
    parts = dict(memory.parts)
    return {
        "weights GiB": memory.weights_mib / 1024,
        "cache GiB": memory.kv_mib / 1024,
        "cache tokens": memory.kv_tokens,
        "graphs GiB": parts.get("graphs", 0) / 1024,
        "activations GiB": parts.get("activations", 0) / 1024,
        "with context GiB": (parts.get("weights", 0) + parts.get("context", 0)) / 1024,
    }


def reported(text: str) -> dict[str, float]:
    """The figures that vLLM logs, the first of each; the last of the graphs."""
    found = {}
    for name, pattern in FOUND.items():
        if hits := re.findall(pattern, text):
            hit = hits[-1 if name.startswith("graphs") else 0]
            found[name] = float(hit.replace(",", ""))
    return found


def cells(wanted: Mapping[str, float], real: Mapping[str, float]) -> Iterator[str]:
    """What was foreseen and found of each figure in `FOUND`, and how far off it was."""
    for key in FOUND:
        if wanted.get(key) and real.get(key):
            off = wanted[key] / real[key] - 1
            yield f"{wanted[key]:.5g} / {real[key]:.5g} ({off:+.2%})"
        else:
            yield f"{wanted.get(key, '-')} / {real.get(key)}"


@pytest.mark.parametrize("name", SHAPES)
def test_what_a_start_takes_is_what_was_forecast(name: str, cards: int, tmp_path: Path) -> None:
    shape = SHAPES[name]
    if cards < shape.cards:
        pytest.skip(f"needs {shape.cards} cards")
    found = planned(shape, tmp_path, CACHE if EAGER else tmp_path / "cache")
    settings = {key: found.plan.value(key) for key in (
        "kv_cache_dtype", "speculative_config", "max_num_seqs", "max_num_batched_tokens",
        "gpu_memory_utilization", "attention_backend", "enforce_eager",
    )}  # fmt: skip
    parts = {part: round(size) for part, size in found.memory.parts} if found.memory else {}
    print(f"\n{name}: {settings}, MiB {parts}", flush=True)
    assert found.memory is not None
    assert found.memory.fits, found.memory.reason or found.memory.conflicts
    for way in WAYS:
        wanted = forecast(of_first_start(found) if way == "cold" else found.memory)
        with started(found, tmp_path / f"engine-{way}.log") as text:
            real = reported(text)
        print(f"| {name} | {way} | {' | '.join(cells(wanted, real))} |", flush=True)
        for key in ("weights GiB", "cache GiB", "cache tokens"):
            assert abs(wanted[key] / real[key] - 1) <= MAX_OFF, key
        assert wanted["cache GiB"] - real["cache GiB"] <= MAX_GIB_TOO_MUCH
