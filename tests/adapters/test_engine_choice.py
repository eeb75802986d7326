"""Which engine a configuration is for."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from caovand.adapters.engine import choice as engine_choice
from caovand.adapters.engine.choice import chosen_engine
from caovand.adapters.files import config_file
from caovand.core.config.key import ConfigError
from caovand.core.config.schema import Config, EngineSection, ModelSection
from caovand.core.engine.record import Engine
from caovand.daemon.start.inspection import StartObstacle, check_kind
from caovand.engines import registry
from tests import fake_engine

PURRING = replace(
    fake_engine.ENGINE,
    prefers=lambda path, files: path.endswith(".cat") or "cat.bin" in files,
)


@pytest.fixture(autouse=True)
def two_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: dict[str, Engine] = {"vllm": registry.engine_of(), "tabby": PURRING}
    monkeypatch.setattr(registry, "MODULES", dict.fromkeys(kinds, ""))
    monkeypatch.setattr(registry, "engine_of", lambda kind=registry.DEFAULT: kinds[kind])


def config(path: str, kind: str | None = None) -> Config:
    return Config(model=ModelSection(path=path), engine=EngineSection(kind=kind))


def test_the_kind_that_prefers_the_model_is_chosen_and_else_the_default_one(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "cat.bin").touch()
    (tmp_path / "dog").mkdir()
    chosen = {
        path: chosen_engine(config(path)).name
        for path in ("/m/x.cat", str(tmp_path / "cat"), str(tmp_path / "dog"), "a/b", "", "\0")
    }
    assert list(chosen.values()) == ["tabby", "tabby", "vllm", "vllm", "vllm", "vllm"]


def test_a_kind_that_is_set_counts_whatever_the_model_is() -> None:
    assert chosen_engine(config("/m/x.cat", "vllm")).name == "vllm"
    assert chosen_engine(config("a/b", "tabby")).name == "tabby"


def test_the_ladder_is_that_of_the_models_engine(tmp_path: Path) -> None:
    file = tmp_path / "caovan.toml"
    file.write_text('[model]\npath = "x.cat"\n[policy]\nladder = ["narrow"]\n')
    assert config_file.load(file).policy.ladder == ("narrow",)
    file.write_text('[model]\npath = "a/b"\n[policy]\nladder = ["narrow"]\n')
    with pytest.raises(ConfigError, match='names "narrow", which is not a rung'):
        config_file.load(file)


def test_a_daemon_keeps_to_the_kind_it_began_with() -> None:
    check_kind(config("x.cat"), PURRING)
    with pytest.raises(
        StartObstacle, match=r"x\.cat is for Tabby, but this daemon started with vLLM; r"
    ):
        check_kind(config("x.cat"), registry.engine_of("vllm"))


def test_a_disk_that_does_not_answer_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answer = threading.Event(), threading.Event()

    def hang(path: str) -> list[str]:
        asked.set()
        answer.wait()
        return ["cat.bin"]

    monkeypatch.setattr(engine_choice, "PATIENCE_S", 0.01)
    monkeypatch.setattr("os.listdir", hang)
    assert chosen_engine(config("/net/cat")).name == "vllm"
    assert asked.wait(10)
    answer.set()
