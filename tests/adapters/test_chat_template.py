"""The served template determines the parsers, wherever it comes from."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from caovand.adapters.engine.chat_template import MAX_BYTES, with_template
from caovand.core.config.parser import parse
from caovand.core.facts.inventory import ModelCard
from caovand.engines.registry import engine_of
from tests.core.machines import QWEN_27B_AWQ, inventory, plan

TEXT = "{% if tools %}<function=x>{% endif %}<think>"
BARE = replace(QWEN_27B_AWQ, chat_template=None)


def served(model: dict[str, str], *words: str, card: ModelCard = BARE) -> ModelCard:
    config = parse({"model": model, "engine": {"extra_args": list(words)}})
    return with_template(card, engine_of().arguments.chat_template(config))


def test_a_template_from_a_file_chooses_the_parsers(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text(TEXT)
    for card in (
        served({"chat_template": str(file)}),
        served({}, "--chat-template", str(file)),
        served({"chat_template": "/nowhere"}, f"--chat-template={file}"),
    ):
        assert (card.chat_template, card.notes) == (TEXT, ())
        found = plan(inventory(card), model={"chat_template": str(file)})
        assert found.value("chat_template") == str(file)
        assert found.value("tool_call_parser") == "qwen3_coder"
        assert found.value("reasoning_parser") == "qwen3"


def test_a_template_may_be_the_text_itself() -> None:
    assert served({}, "--chat-template", TEXT).chat_template == TEXT
    assert served({"chat_template": TEXT}).chat_template == TEXT


def test_without_one_it_is_the_models_own() -> None:
    assert served({}, card=replace(BARE, chat_template="own")).chat_template == "own"


def test_a_template_without_tools_replaces_the_models_own(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("{{ messages }}")
    card = served({"chat_template": f"{tmp_path}/plain"}, card=replace(BARE, chat_template=TEXT))
    found = plan(inventory(card))
    assert found.value("tool_call_parser") is None
    assert "the chat template does not mention tools" in found.settings["tool_call_parser"].reason


@pytest.mark.parametrize("kind", ["absent", "folder", "pipe", "too large"])
def test_a_template_that_cannot_be_read_is_said_and_chooses_nothing(
    tmp_path: Path, kind: str
) -> None:
    place = tmp_path / "chat.jinja"
    if kind == "folder":
        place.mkdir()
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "too large":
        with place.open("wb") as file:
            file.truncate(MAX_BYTES + 1)
    card = served({}, "--chat-template", str(place), card=replace(BARE, chat_template=TEXT))
    assert card.chat_template is None
    (note,) = card.notes
    assert note.cannot == f"read the chat template {place}"
    assert "tool_call_parser" in note.remedy
    assert str(note) in plan(inventory(card)).warnings
