"""Models are found by Ollama's names: entries, blobs, folders, and what is missing."""

from __future__ import annotations

import json
import os
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.adapters.model_folder import ModelProblem, read_named
from caovand.core.config.parser import parse
from caovand.core.config.schema import Config
from caovand.engines.ollama.names import (
    NAMED_MODELS,
    SERVICE_MODELS,
    folder_of,
    folders,
    manifest_path,
)
from tests import tiny_gguf
from tests.engines.ollama.store import add_model

LLAMA = tiny_gguf.make("llama")


def config(name: str, **env: str) -> Config:
    return parse({"model": {"path": name}, "engine": {"kind": "ollama", "env": env}})


def problem(name: str, home: Path) -> str:
    with pytest.raises(ModelProblem) as caught:
        read_named(NAMED_MODELS, config(name), {"OLLAMA_MODELS": str(home)})
    return str(caught.value)


def test_a_name_leads_to_its_entry() -> None:
    library = "manifests/registry.ollama.ai/library"
    assert manifest_path("qwen3:8b") == f"{library}/qwen3/8b"
    assert manifest_path("qwen3") == f"{library}/qwen3/latest"
    assert manifest_path("me/mine:q4_K_M") == "manifests/registry.ollama.ai/me/mine/q4_K_M"
    assert manifest_path("hf.co/org/Model-GGUF:Q4_0") == "manifests/hf.co/org/Model-GGUF/Q4_0"
    assert manifest_path("localhost:5000/org/model") == "manifests/localhost:5000/org/model/latest"


@pytest.mark.parametrize(
    "name", ["/srv/m.gguf", "../x", "a/../b", "a:", ":8b", "a/b/c/d", "a b", "a\n", "~/m"]
)
def test_what_is_no_name_has_no_entry(name: str, tmp_path: Path) -> None:
    assert manifest_path(name) == ""
    told = problem(name, tmp_path)
    assert "it is not the name of an Ollama model" in told
    assert ("hf.co/OWNER/NAME:Q4_K_M" in told) == name.startswith(("/", ".", "~"))


@given(st.text(alphabet=string.ascii_lowercase + "./:_-~ ", max_size=40))
def test_no_name_leaves_the_folder_of_entries(name: str) -> None:
    found = manifest_path(name)
    assert not found or os.path.normpath(found) == found
    assert not found or found.startswith("manifests/")


def test_folders_are_the_chosen_one_or_the_users_and_the_services() -> None:
    own = {"HOME": "/home/me", "OLLAMA_MODELS": "/srv/a"}
    assert list(folders(config("m", OLLAMA_MODELS="/srv/b"), own)) == ["/srv/b"]
    assert list(folders(config("m"), own)) == ["/srv/a"]
    assert list(folders(config("m"), {"HOME": "/home/me"})) == [
        "/home/me/.ollama/models", SERVICE_MODELS,
    ]  # fmt: skip
    assert list(folders(config("m"), {})) == [SERVICE_MODELS]


def test_a_model_is_read_from_its_blob(tmp_path: Path) -> None:
    blob = add_model(tmp_path / ".ollama/models", "tiny:1b", LLAMA)
    card = read_named(NAMED_MODELS, config("tiny:1b"), {"HOME": str(tmp_path)})
    assert card.path == str(blob)
    assert card.gguf is not None
    assert folder_of(card.path) == str(tmp_path / ".ollama/models")


def test_a_missing_model_is_named_with_the_command_that_downloads_it(tmp_path: Path) -> None:
    add_model(tmp_path, "tiny:1b", LLAMA)
    text = problem("tiny:8b", tmp_path)
    assert text.startswith("cannot serve model tiny:8b with Ollama: Ollama has no such model")
    assert "caovanctl model pull --from ollama tiny:8b" in text


def test_a_broken_store_is_a_problem_and_no_crash(tmp_path: Path) -> None:
    blob = add_model(tmp_path, "tiny:1b", LLAMA)
    blob.write_bytes(LLAMA[:100])
    assert "download the model again" in problem("tiny:1b", tmp_path)
    blob.unlink()
    assert "is missing" in problem("tiny:1b", tmp_path)
    at = tmp_path / manifest_path("tiny:1b")
    layer = {"mediaType": "application/vnd.ollama.image.model"}
    outside = {**layer, "digest": "sha256:../../../etc/passwd"}
    for layers in (None, [], [3], [layer], [outside]):
        at.write_text(json.dumps({"layers": layers}))
        assert "does not name a GGUF file" in problem("tiny:1b", tmp_path)
    at.write_text("[")
    assert "it is not JSON" in problem("tiny:1b", tmp_path)
