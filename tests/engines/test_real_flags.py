"""Plans against the flags that real vLLM parsers take.

The samples were written by the probe in engines installed from the lock files. Each command line
below was also parsed by those engines.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from caovand.core.config import MODES
from caovand.core.facts.inventory import EngineInfo, Gpu
from caovand.engines.vllm.command import build
from tests.core.machines import A100, H200, inventory, plan, turing

SAMPLES = Path(__file__).parents[1] / "samples" / "engines"


def engine(version: str) -> EngineInfo:
    """An engine as it was probed."""
    seen = json.loads((SAMPLES / f"vllm-{version}-cuda.json").read_text())
    return EngineInfo(
        "/engine/bin/python", seen["vllm"], seen["torch"], "cuda", seen["flashinfer"],
        flags=frozenset(seen["flags"]), deprecated=frozenset(seen["deprecated"]),
        choices=tuple((name, tuple(values)) for name, values in seen["choices"].items()),
        tool_parsers=frozenset(seen["tool_parsers"]),
        reasoning_parsers=frozenset(seen["reasoning_parsers"]),
    )  # fmt: skip


@pytest.mark.parametrize("gpus", [turing(1), turing(2), A100, H200], ids=["1t", "2t", "a", "h"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("version", ["0.21.0", "0.33.0"])
def test_every_planned_flag_is_one_that_vllm_takes(
    version: str, mode: str, gpus: tuple[Gpu, ...]
) -> None:
    real = engine(version)
    found = plan(inventory(gpus=gpus, engine=real), how={"mode": mode})
    ideal = plan(inventory(gpus=gpus, engine=replace(real, flags=frozenset())), how={"mode": mode})
    dropped = {name for name, s in ideal.settings.items() if s.value is not None} - {
        name for name, s in found.settings.items() if s.value is not None
    }
    assert dropped == set()
    argv = build(found, real).argv
    options = [word for word in argv if word.startswith("--")]
    assert set(options) <= real.flags - real.deprecated
    for name, values in real.choices:
        if name in options:
            assert argv[argv.index(name) + 1] in values
