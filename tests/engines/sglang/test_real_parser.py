"""Command lines for SGLang 0.5.17, the release of our lock, as its own parser reads them.

By a recording of it, and by the parser itself, from the release's sources.
"""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caovand.core.config.schema import MODES
from caovand.core.healing.failure import Finding
from caovand.core.plan import Plan
from caovand.engines.sglang import options
from caovand.engines.sglang.engine import ENGINE
from caovand.engines.sglang.healing.rungs import RUNGS
from tests.core.machines import A100, GPT_OSS, H200, LLAMA_70B_AWQ, QWEN_27B
from tests.daemon_process import ROOT
from tests.engines.sglang.test_planner import DRAFTS, LLAMA_8B, REAL, machine, plan

SAMPLE = ROOT / "tests/samples/sglang/options-0.5.17.json"
SOURCES = ROOT / ".caovan/sglang-0.5.17"
PYTHON = ROOT / ".engines/current/bin/python"
SCRIPT = Path(__file__).with_name("real_parser.py")
RECORDED = json.loads(SAMPLE.read_text(encoding="utf-8"))["options"]
LOCKED = replace(
    REAL, version="0.5.17", torch="2.11.0+cu130", flags=frozenset(RECORDED),
    switches=frozenset(name for name, one in RECORDED.items() if one.get("nargs") == 0),
    choices=tuple((name, tuple(one["choices"])) for name, one in RECORDED.items()
                  if "choices" in one),
    deprecated=frozenset(name for name, one in RECORDED.items() if one.get("deprecated")),
)  # fmt: skip
EAGLE = (
    "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "/srv/eagle",
    "--speculative-num-steps", "3",
)  # fmt: skip
NAMES = {options.CONTEXT: "context_length"}


def plans() -> Iterator[Plan]:
    """For models, cards, modes, and keys that become options; and what the ladder makes of each."""
    models = (LLAMA_8B, DRAFTS, QWEN_27B, GPT_OSS, LLAMA_70B_AWQ)
    made = [
        plan(machine(gpus, model, LOCKED), policy={"mode": mode})
        for gpus, model, mode in itertools.product((A100, H200), models, MODES)
    ]
    made += [
        plan(machine(engine=LOCKED), **sections)
        for sections in (
            {"policy": {"cuda_graphs": "none"}},
            {"policy": {"cuda_graphs": "full_decode_only", "kv_cache_dtype": "fp8_e4m3"}},
            {"model": {"trust_remote_code": True, "chat_template": "/srv/t.jinja"}},
            {"server": {"tool_call_parser": "qwen25", "reasoning_parser": "qwen3"}},
            {"engine": {"extra_args": list(EAGLE)}},
        )
    ]
    for one in made:
        yield one
        for rung in RUNGS:
            step = rung.step(one, Finding("unknown", ""))
            if step is not None:
                changed = {
                    name: replace(one.settings.get(name, one.settings["port"]), value=value)
                    for name, value in step.settings.items()
                }
                yield replace(one, settings={**one.settings, **changed})


def words(made: Plan) -> tuple[str, ...]:
    """What follows the module's name."""
    return ENGINE.planning.command(made, LOCKED, "/cache").argv[3:]


def test_every_planned_option_is_one_that_it_takes_and_has_not_deprecated() -> None:
    for made in plans():
        asked = {word for word in words(made) if word.startswith("--")}
        assert asked <= LOCKED.flags - LOCKED.deprecated
        for name, values in LOCKED.choices:
            if name in asked:
                assert words(made)[words(made).index(name) + 1] in values


@pytest.mark.long
def test_its_own_parser_reads_every_plan_as_it_was_meant() -> None:
    for place, target in ((SOURCES / "ready", "sglang-0.5.17"), (PYTHON, "engine")):
        if not place.exists():
            pytest.fail(f"{place} is missing: run `make {target}` first", pytrace=False)
    made = list(plans())
    found = parsed([*map(words, made), ("--model-path", "/srv/m", "--no-such-option")])
    assert "unrecognized arguments: --no-such-option" in found.pop()["refused"]
    for one, values in zip(made, found, strict=True):
        assert values["model_path"] == one.model
        for name, setting in one.settings.items():
            if name in (options.DRAFTING, *one.verbatim) or setting.value is None:
                continue
            assert values[NAMES.get(name, name)] == setting.value, (name, words(one))
        drafts = one.value(options.DRAFTING)
        if drafts:
            depth = drafts["num_speculative_tokens"]
            assert values["speculative_algorithm"] == "NEXTN"
            assert values["speculative_num_steps"] == depth
            assert values["speculative_num_draft_tokens"] == depth + 1
    assert any(values["speculative_algorithm"] == "EAGLE3" for values in found)


def parsed(lines: list[tuple[str, ...]]) -> list[dict[str, Any]]:
    """What SGLang's parser makes of each."""
    done = subprocess.run(
        [str(PYTHON), "-W", "ignore", str(SCRIPT), str(SOURCES)],
        input=json.dumps(lines), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found
