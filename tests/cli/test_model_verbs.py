"""caovanctl model: from a hub to a folder, with the forecast in between, and back."""

from __future__ import annotations

import argparse
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from caovand.adapters.model_pull import folders
from caovand.cli.common import survey
from caovand.core.facts.inventory_file import render
from caovand.core.model_source.selection import MANIFEST
from tests import tiny_gguf
from tests.cli.conftest import Ctl
from tests.cli.test_offline_verbs import CONFIG
from tests.core.machines import CUDA, HOST, turing
from tests.engines.llamacpp.machines import CUDA as LLAMACPP
from tests.hub_server import COMMIT, NAME, Fault, HubServer, serving

SHARD = "model.safetensors"


def shard(rows: int) -> bytes:
    """Weights that are one tensor; of a large one the header alone is ever read."""
    entry = {"dtype": "BF16", "shape": [rows, 2], "data_offsets": [0, rows * 4]}
    text = json.dumps({"model.layers.0.mlp.up_proj.weight": entry}).encode()
    return struct.pack("<Q", len(text)) + text + b"\0" * (rows * 4)


FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer.json": b"{}",
    "modeling_tiny.py": b"raise SystemExit",
    SHARD: shard(4),
}


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with serving(FILES) as server:
        yield server


@pytest.fixture
def words(tmp_path: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """A pull from the hub into a folder of ours, planned for a 2080 Ti."""
    saved = tmp_path / "machine.json"
    saved.write_text(json.dumps(render(turing(1), HOST, CUDA)))
    monkeypatch.setenv("CAOVAN_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    for name in ("RUNTIME", "STATE", "CACHE", "LOGS"):
        monkeypatch.setenv(f"{name}_DIRECTORY", str(tmp_path / name.lower()))
    return ("model", "pull", NAME, "--inventory", str(saved))


def test_the_file_to_edit_is_the_running_daemons(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    running = tmp_path / "caovan.toml"
    running.touch()
    typed = argparse.Namespace(runtime=None, config=Path("/x.toml"))
    untyped = argparse.Namespace(runtime=None, config=None)
    monkeypatch.setattr(survey, "running", lambda _: {"daemon": {"config": str(running)}})
    assert survey.file_to_edit(typed) == Path("/x.toml")
    assert survey.file_to_edit(untyped) == running
    running.chmod(0o666)
    if os.geteuid() == 0:  # root is not sent to a file that anybody can write
        assert survey.file_to_edit(untyped) == survey.SYSTEM_CONFIG
    monkeypatch.setattr(survey, "running", lambda _: {})
    assert survey.file_to_edit(untyped) == survey.SYSTEM_CONFIG


def test_from_pull_to_remove(
    ctl: Ctl, words: tuple[str, ...], hub: HubServer, tmp_path: Path
) -> None:
    folder = tmp_path / "models" / "owner--tiny"
    said = ctl(*words)
    assert said.code == 0, said.err
    assert "left out, Python code: modeling_tiny.py" in said.err
    assert "--trust-code downloads it" in said.err
    assert "fits: " in said.err
    assert said.out.endswith(f'in /etc/caovan.toml, under [model]: path = "{folder}"\n')
    assert not (folder / "modeling_tiny.py").exists()

    listed = ctl("model", "list", "--json").json
    assert [(one["name"], one["path"]) for one in listed["models"]] == [(NAME, str(folder))]
    (line,) = ctl("model", "list").out.splitlines()
    assert line.startswith(f"{NAME} ")
    assert f"  {COMMIT[:12]}  " in line
    manifest = folder / MANIFEST
    as_pulled = manifest.read_text()
    manifest.write_text(json.dumps({**json.loads(as_pulled), "commit": ""}))  # of ModelScope
    assert "  main " in ctl("model", "list").out
    manifest.write_text(as_pulled)
    assert ctl("model", "verify", NAME).out.startswith(f"{NAME} is intact: 3 files")
    assert ctl("model", "verify", str(folder)).code == 0

    data = bytearray((folder / SHARD).read_bytes())
    data[-1] ^= 1
    (folder / SHARD).write_bytes(data)
    damaged = ctl("model", "verify", NAME, "--json")
    assert damaged.code == 1
    assert damaged.json["damage"] == [f"{SHARD} differs from the publisher's file"]
    assert ctl(*words, "--json").json["files"].keys() == FILES.keys() - {"modeling_tiny.py"}
    assert ctl("model", "verify", "owner--tiny").code == 0

    assert ctl("model", "remove", NAME).code == 0
    assert list((tmp_path / "models").iterdir()) == []
    assert ctl("model", "list").out.startswith("no model in ")
    assert ctl("model", "verify", NAME).code == 1


def test_what_does_not_fit_is_not_downloaded(
    ctl: Ctl, words: tuple[str, ...], hub: HubServer, tmp_path: Path
) -> None:
    """A header that promises 800 GiB of weights: more than the card and the memory."""
    size = 800 << 30
    entry = {"dtype": "BF16", "shape": [size // 4, 2], "data_offsets": [0, size]}
    text = json.dumps({"model.layers.0.mlp.up_proj.weight": entry}).encode()
    start = struct.pack("<Q", len(text)) + text
    hub.files[SHARD] = start
    whole = hub.hugging_face()
    for sibling in whole["siblings"]:
        if sibling["rfilename"] == SHARD:
            sibling["lfs"]["size"] = len(start) + size
    hub.documents[f"/api/models/{NAME}/revision/"] = whole
    hub.files[SHARD] = start + bytes(1 << 16)
    said = ctl(*words, "--json")
    assert said.code == 1
    assert "does not fit this machine" in said.json["error"]["message"]
    assert "--force" in said.json["error"]["hint"]
    assert "does not fit: " in said.err
    assert "would help: " in said.err
    assert not (tmp_path / "models").exists()
    forced = ctl(*words, "--force")
    assert "pulled anyway (--force)" in forced.err
    assert "MiB free, but" in forced.err  # it gets as far as the disk


def test_what_cannot_be_planned_is_not_downloaded(
    ctl: Ctl, words: tuple[str, ...], hub: HubServer
) -> None:
    hub.files["config.json"] = b'{"architectures": "no list"}'
    said = ctl(*words)
    assert said.code == 1
    assert f"cannot plan {NAME}" in said.err
    assert "fix that first, or download it with --force" in said.err
    assert "/tmp/" not in said.err
    assert ctl(*words, "--force").code == 0


@pytest.fixture
def gguf_words(words: tuple[str, ...], hub: HubServer, tmp_path: Path) -> tuple[str, ...]:
    """A hub with GGUF models, one of them split, and a machine with llama.cpp and one card."""
    hub.files.clear()
    hub.files |= {
        "tiny-F16.gguf": tiny_gguf.make("qwen3"), "tiny-Q4_0.gguf": tiny_gguf.make("llama"),
        "mmproj-F16.gguf": b"GGUF", "LICENSE": b"free", "README.md": b"# Tiny",
    }  # fmt: skip
    for part in tiny_gguf.write_parts("qwen3moe", tmp_path / "tiny-Q8_0.gguf", 2):
        hub.files[f"Q8_0/{part.name}"] = part.read_bytes()
    saved = Path(words[-1])
    saved.write_text(json.dumps(render(turing(1), HOST, LLAMACPP)))
    return words[2:]


def test_the_gguf_model_that_suits_the_machine_is_pulled(
    ctl: Ctl, gguf_words: tuple[str, ...], hub: HubServer, tmp_path: Path
) -> None:
    """The split one has the most bits of those that are quantised."""
    folder = tmp_path / "models" / "owner--tiny--Q8_0"
    said = ctl("model", "pull", *gguf_words)
    assert said.code == 0, said.err
    assert "other GGUF files: mmproj-F16.gguf, tiny-F16.gguf, tiny-Q4_0.gguf" in said.err
    assert "planned for 1 GPU" in said.err
    first = folder / "Q8_0" / "tiny-Q8_0-00001-of-00002.gguf"
    assert said.out.endswith(f'under [model]: path = "{first}"\n')
    assert first.read_bytes() == hub.files["Q8_0/tiny-Q8_0-00001-of-00002.gguf"]
    assert (folder / "LICENSE").is_file()
    name = f"{NAME}:Q8_0"
    assert ctl("model", "verify", name).out.startswith(f"{name} is intact: 3 files")

    other = ctl("model", "pull", f"{NAME}:q4_0", *gguf_words[1:])
    assert other.code == 0, other.err
    assert [one["name"] for one in ctl("model", "list", "--json").json["models"]] == [
        f"{NAME}:Q4_0", name,
    ]  # fmt: skip
    assert ctl("model", "remove", name).code == 0
    assert not folder.exists()


def test_a_gguf_model_that_is_not_there_is_named_with_those_that_are(
    ctl: Ctl, gguf_words: tuple[str, ...], hub: HubServer
) -> None:
    said = ctl("model", "pull", f"{NAME}:Q5_K_M", *gguf_words[1:])
    assert said.code == 1
    assert f"cannot pull {NAME}:Q5_K_M: it has no GGUF model Q5_K_M" in said.err
    assert "choose one of Q4_0, F16, Q8_0" in said.err
    hub.files.clear()
    hub.files |= FILES
    said = ctl("model", "pull", f"{NAME}:Q5_K_M", *gguf_words[1:])
    assert "omit :Q5_K_M" in said.err
    hub.files["tiny-Q4_0.gguf"] = b"GGUF" + bytes(100)
    said = ctl("model", "pull", f"{NAME}:Q4_0", *gguf_words[1:])
    assert "tiny-Q4_0.gguf is unusable" in said.err


def test_a_folder_of_ones_own(ctl: Ctl, words: tuple[str, ...], tmp_path: Path) -> None:
    own = tmp_path / "mine"
    assert ctl(*words, "--to", str(own)).code == 0
    assert (own / "config.json").is_file()
    assert ctl("model", "verify", str(own)).code == 0
    assert ctl("model", "remove", str(own)).code == 0
    assert not own.exists()


def test_the_model_that_is_served_is_not_removed(
    ctl: Ctl, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ctl(*words).code == 0
    config = tmp_path / "caovan.toml"
    config.write_text(f'model.path = "{tmp_path}/models/owner--tiny"\n')
    monkeypatch.setattr("caovand.cli.common.survey.SYSTEM_CONFIG", config)
    said = ctl("model", "remove", NAME)
    assert (said.code, "caovan is serving this model" in said.err) == (1, True)


def test_an_unfinished_pull_is_listed_and_can_be_removed(
    ctl: Ctl, words: tuple[str, ...], hub: HubServer, tmp_path: Path
) -> None:
    hub.files[SHARD] = shard(100)
    # the first answer is for the header, the second for the file
    hub.faults[SHARD] = [Fault(), Fault(length=1)]
    assert "claims a length" in ctl(*words).err
    listed = ctl("model", "list", "--json").json
    assert listed["models"] == []
    assert [one["name"] for one in listed["unfinished"]] == [NAME]
    assert f"note: {NAME} is not complete" in ctl("model", "list").err
    assert "is not complete; run the same model pull again" in ctl("model", "verify", NAME).err
    assert ctl("model", "remove", NAME).code == 0
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("pull", "gpt2"), "name it as OWNER/NAME"),
        (("pull", NAME, "--from", "http://hub.example.org"), "not encrypted"),
        (("verify", "nothing/here"), "/nothing--here does not exist; `caovanctl model list`"),
        (("remove", "nothing/here"), "/nothing--here does not exist"),
        (("remove", ".."), "there is no |was not pulled"),
    ],
)
def test_what_is_refused_is_one_object_under_json(
    ctl: Ctl, words: tuple[str, ...], arguments: tuple[str, ...], why: str
) -> None:
    said = ctl("model", *arguments, "--json")
    assert (said.code, set(said.json)) == (1, {"ok", "error"})
    assert any(text in said.err for text in why.split("|"))


def test_a_folder_that_the_service_cannot_enter_is_named(
    ctl: Ctl, words: tuple[str, ...], tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    closed.chmod(0o700)
    said = ctl(*words, "--to", str(closed / "model"))
    assert said.code == 0
    assert folders.closed_to_others(closed / "model") is not None
    assert "the service's user cannot enter" in said.err
