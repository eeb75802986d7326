"""The keys that an engine's planner reads, and those that it says do nothing."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

from caovand.core.config.parser import parse
from caovand.core.config.schema import Config
from caovand.engines.common.plans import DAEMON_KEYS, idle_keys
from caovand.engines.llamacpp.planning import planner as llamacpp
from caovand.engines.ollama.planning import planner as ollama
from caovand.engines.sglang.planning import planner as sglang

PLANNERS = pytest.mark.parametrize("planner", [llamacpp, ollama, sglang])
AUTO = {
    key.name
    for section in ("model", "server", "policy")
    for key in fields(getattr(Config(), section))
    if key.default is None
} - DAEMON_KEYS


def read_by(planner: ModuleType) -> set[str]:
    """The names of keys in the source of an engine's planner, and of what it shares with others."""
    assert planner.__file__ is not None
    folder = Path(planner.__file__).parent
    text = "".join(file.read_text() for file in folder.rglob("*.py"))
    for module, name in (("common", "drafting"), ("common.gguf", "choices")):
        if f"{module}.{name}" in text or re.search(rf"\b{module} import .*\b{name}\b", text):
            text += (folder.parents[1] / module.replace(".", "/") / f"{name}.py").read_text()
    return set(re.findall(r"\b(?:model|server|policy)\.(\w+)", text))


@PLANNERS
def test_the_keys_of_a_planner_are_those_that_its_source_reads(planner: ModuleType) -> None:
    assert AUTO & read_by(planner) == planner.USED
    assert not planner.USED & planner.UNUSED.keys()


@PLANNERS
def test_a_key_that_no_planner_knows_is_named(planner: ModuleType) -> None:
    typed = parse({"policy": {"activations": "int8", "max_num_seqs": 3}})
    (text,) = idle_keys(typed, planner.USED, planner.UNUSED, "it")
    assert text.startswith("[policy] activations has no effect on it: ")
    assert list(idle_keys(Config(), planner.USED, planner.UNUSED, "it")) == []
