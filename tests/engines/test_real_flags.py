"""Plans against the flags that real vLLM parsers take.

The samples were written by the probe in engines installed from the lock files. Each command line
below was also parsed by those engines.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from caovand.core.config.schema import MODES
from caovand.core.facts.inventory import EngineInfo, Gpu
from caovand.engines.registry import engine_of
from caovand.engines.vllm.command import build
from caovand.engines.vllm.engine import ENGINE
from caovand.engines.vllm.flags.table import SUCCESSORS
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


@pytest.mark.parametrize(
    ("words", "problems"),
    [
        (("--kv-cache-dtype", "fp8", "--max-model-len", "4096", "--no-enable-prefix-caching"), []),
        (("--kv-cache-dtype", "int3"), ["--kv-cache-dtype int3: vLLM 0.21.0 has no such value"]),
        (("--kv-cache-dtype=int3",), ["--kv-cache-dtype int3: vLLM 0.21.0 has no such value"]),
        (("--no-such-flag-at-all",), ["--no-such-flag-at-all: vLLM 0.21.0 has no such flag"]),
        (("--max-num-seqz", "4"), ["--max-num-seqz: vLLM 0.21.0 has no such flag; use --max-num-"]),
        (("--enforce-eager", "yes"), ['"yes": it does not belong to any flag']),
        (("--api-key", "one", "two", "--sedd", "3"), ["--sedd: vLLM 0.21.0 has no such flag"]),
    ],
)
def test_flags_that_vllm_refuses_are_named_as_they_were_typed(
    words: tuple[str, ...], problems: list[str]
) -> None:
    found = ENGINE.arguments.check(words, engine("0.21.0"))
    assert len(found) == len(problems)
    for problem, expected in zip(found, problems, strict=True):
        assert expected in str(problem)
    assert ENGINE.arguments.check(words, replace(engine("0.21.0"), flags=frozenset())) == ()


@pytest.mark.parametrize("version", ["0.21.0", "0.33.0"])
def test_flags_that_vllm_removed_are_named_with_what_it_has_instead(version: str) -> None:
    real = engine(version)
    gone = [name for name in SUCCESSORS if f"--{name.replace('_', '-')}" not in real.flags]
    assert len(gone) > 30
    for name in gone:
        named = re.findall(r"--[a-z0-9-]+", SUCCESSORS[name])
        assert set(named) <= real.flags, name
    words = ["--enable-reasoning", "--swap-space", "4"]
    problems = ENGINE.arguments.check(words, real)
    assert [found.remedy for found in problems] == [
        SUCCESSORS["enable_reasoning"], SUCCESSORS["swap_space"]
    ]  # fmt: skip
    warnings = plan(inventory(engine=real), engine={"extra_args": words}).warnings
    assert any(SUCCESSORS["swap_space"] in text for text in warnings)


@pytest.mark.parametrize("kind", ["llamacpp", "sglang"])
def test_other_engines_refuse_flags_that_they_do_not_have(kind: str) -> None:
    asked = replace(
        engine("0.21.0"), flags=frozenset({"--port", "--host"}), switches=frozenset(), choices=()
    )
    words = ("stray", "--port", "1", "--frobnicate", "2")
    found = [str(problem) for problem in engine_of(kind).arguments.check(words, asked)]
    assert sorted(text.partition(":")[0] for text in found) == [
        "cannot pass --frobnicate", "cannot pass a word of [engine] extra_args",
    ]  # fmt: skip
    assert engine_of(kind).arguments.check(words, replace(asked, flags=frozenset())) == ()
