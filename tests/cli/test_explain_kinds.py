"""`caovanctl explain` finds out by itself whose log it reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caovand.cli import explain
from caovand.core.log import Explanation, PhaseTime
from caovand.engines import registry
from tests import fake_engine

NOTHING = Explanation(None, (), "", None, (), {}, {}, {})


def purr(text: str) -> Explanation:
    if "tabby 2.0" in text:
        return replace(NOTHING, engine_version="2.0")
    return replace(NOTHING, phases=(PhaseTime("load", 1.0),)) if "tabby" in text else NOTHING


@pytest.fixture(autouse=True)
def two_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {"vllm": registry.engine_of(), "tabby": replace(fake_engine.ENGINE, explain=purr)}
    monkeypatch.setattr(registry, "MODULES", dict.fromkeys(kinds, ""))
    monkeypatch.setattr(registry, "engine_of", kinds.__getitem__)


@pytest.mark.parametrize(
    ("text", "title"),
    [("tabby 2.0", "Tabby"), ("tabby: loading 7%", "Tabby"), ("who knows", "vLLM")],
)
def test_a_log_is_explained_by_the_engine_it_is_of(text: str, title: str) -> None:
    engine, found = explain.explained(text)
    assert next(explain.page(found, engine.title)).startswith(title)
