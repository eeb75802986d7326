"""Every type of model that a release of vLLM drafts with has its MTP head counted.

What turns a model's configuration into its drafter's is run from the release's own source.
"""

from __future__ import annotations

import ast
import copy
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from caovand.core.checkpoint.config_json import describe
from tests.engines.releases import RELEASES, source_of

KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
SIZES = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
NO_HEAD_OF_ITS_OWN = {"gemma4_assistant", "gemma4_unified_assistant"}
"""A model of its own that drafts for another."""
NESTED = {
    "inkling_mm_model", "inkling_model", "glm5_next", "qwen4_exp", "qwen4_exp_text",
    "intern_s2_preview", "interns2_mobius",
}  # fmt: skip
"""Whose counts are in tables that no minimal configuration has."""

TYPES = {
    "Step3p5ForCausalLM": "step3p5", "Step3p7ForConditionalGeneration": "step3p7",
    "MiniMaxM3SparseForConditionalGeneration": "minimax_m3_vl",
}  # fmt: skip
BY_ITS_CONFIGURATION = {"hy_v4"}
"""Types whose own class of configuration counts one layer by default."""


class Config(SimpleNamespace):
    """As Transformers' own."""

    def update(self, more: dict[str, Any]) -> None:
        self.__dict__.update(more)


def override(folder: Path) -> tuple[Callable[[Config], Config], set[str], set[str]]:
    """vLLM's function, and the types and architectures that it compares with."""
    text = (folder / "config/speculative.py").read_text(encoding="utf-8")
    found = next(
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name == "hf_config_override"
    )
    types, architectures = set[str](), set[str]()
    for test in (node for node in ast.walk(found) if isinstance(node, ast.Compare)):
        words = {n.value for n in ast.walk(test) if isinstance(n, ast.Constant)} - {0, None}
        kind = architectures if "architectures" in ast.unparse(test.left) else types
        if "model_type" in ast.unparse(test) or kind is architectures:
            kind |= {word for word in words if isinstance(word, str) and not word.endswith("_mtp")}
    found.decorator_list = []
    place: dict[str, Any] = {
        "copy": copy, "PretrainedConfig": Config,
        "get_hf_text_config": lambda config: getattr(config, "text_config", config),
    }  # fmt: skip
    exec(compile(ast.Module([found], []), "speculative.py", "exec"), place)
    return place["hf_config_override"], types, architectures


def heads(folder: Path, more: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Config]]:
    """Each model that vLLM drafts with, as a config.json with these keys, and its drafter's."""
    run, types, architectures = override(folder)
    own = types - NO_HEAD_OF_ITS_OWN - NESTED
    named = [{"model_type": kind, "architectures": ["A"]} for kind in sorted(own)]
    named += [
        {"model_type": TYPES.get(name, "x"), "architectures": [name]}
        for name in sorted(architectures)
    ]
    for config in named:
        written = Config(**config, **more, layer_types=[])
        written.text_config = copy.copy(written)
        drafter = run(written)
        if "MTP" in drafter.architectures[0]:
            yield {**config, **SIZES, **more}, drafter


def of_one_layer(folder: Path, drafter: Config) -> bool:
    """Whether the drafter has one layer where nothing counts them."""
    if isinstance(drafter.n_predict, int) or drafter.model_type[:-4] in BY_ITS_CONFIGURATION:
        return True
    registry = (folder / "model_executor/models/registry.py").read_text(encoding="utf-8")
    name = drafter.architectures[0]
    module = re.search(rf'"{name}": \(\s*"([\w.]+)"', registry)
    assert module, f"no module of {name}"
    path = module[1].removeprefix("vllm.").replace(".", "/")
    file = f"{path}.py" if "." in module[1] else f"model_executor/models/{path}.py"
    if not (folder / file).is_file():
        file = f"{path}/__init__.py"
    source = (folder / file).read_text(encoding="utf-8")
    return bool(re.search(r'getattr\(\s*config,\s*"\w*(?:nextn|mtp)\w*",\s*1\s*\)', source))


@pytest.fixture
def constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module whose constants vLLM's function imports."""
    for name in ("vllm", "vllm.model_executor", "vllm.model_executor.models"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    mimo: Any = ModuleType("mimo_v2_mtp")
    mimo._MIMO_V2_PRO_NUM_MTP_LAYERS = mimo._MIMO_V2_FLASH_NUM_MTP_LAYERS = 1
    monkeypatch.setitem(sys.modules, "vllm.model_executor.models.mimo_v2_mtp", mimo)


@pytest.mark.parametrize("release", RELEASES)
def test_each_type_that_a_release_drafts_with_has_its_head_counted(
    release: str, constants: None
) -> None:
    folder = source_of(release)
    counted = dict.fromkeys(KEYS, 1)
    known = {str(config): describe(config).mtp_layers for config, _ in heads(folder, counted)}
    assert len(known) >= 15
    assert [config for config, layers in known.items() if layers != 1] == []


@pytest.mark.parametrize("release", RELEASES)
def test_types_whose_head_needs_no_key_have_one_layer(release: str, constants: None) -> None:
    folder = source_of(release)
    found = {
        str(config): (describe(config).mtp_layers > 0, of_one_layer(folder, drafter))
        for config, drafter in heads(folder, {})
    }
    assert any("qwen3_next" in config for config in found)
    assert [config for config, (counted, has) in found.items() if counted != has] == []
