"""Model folders, whole and broken."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.model_folder import ModelProblem, read_model

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 2,
    "hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 1024,
    "mtp_num_hidden_layers": 1,
}  # fmt: skip


def write_shard(path: Path, names: list[str], size: int = 8) -> None:
    """A sparse shard: its header is whole, its data are holes."""
    header = {
        name: {"dtype": "BF16", "shape": [size // 2], "data_offsets": [i * size, (i + 1) * size]}
        for i, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    with path.open("wb") as shard:
        shard.write(struct.pack("<Q", len(text)) + text)
        shard.truncate(8 + len(text) + size * len(names))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards, an index, an MTP head and a tokenizer."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "tokenizer.json").write_text("{}")
    parts = {
        "model-00001-of-00002.safetensors": ["model.embed_tokens.weight", "lm_head.weight"],
        "model-00002-of-00002.safetensors": ["model.layers.0.mlp.up_proj.weight", "mtp.fc.weight"],
    }
    for name, tensors in parts.items():
        write_shard(tmp_path / name, tensors)
    table = {tensor: name for name, tensors in parts.items() for tensor in tensors}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    return tmp_path


def refused(path: Path | str) -> str:
    with pytest.raises(ModelProblem) as caught:
        read_model(str(path))
    assert str(caught.value).startswith("cannot ")
    assert ";" in str(caught.value)
    return str(caught.value)


def test_a_whole_folder_is_a_card(folder: Path) -> None:
    card = read_model(str(folder))
    assert card.path == str(folder)
    assert card.mtp_layers == 1
    assert card.size("mtp") == card.size("embedding") == 8
    assert card.notes == ()


def test_an_mtp_head_that_is_only_spoken_of_is_none(folder: Path) -> None:
    write_shard(folder / "model-00002-of-00002.safetensors", ["model.layers.0.mlp.up_proj.weight"])
    (folder / "model.safetensors.index.json").unlink()
    card = read_model(str(folder))
    assert card.mtp_layers == 0
    assert "MTP head" in card.notes[0]


def test_a_chat_template_is_found_where_it_may_be(folder: Path) -> None:
    assert read_model(str(folder)).chat_template is None
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "inner"}))
    assert read_model(str(folder)).chat_template == "inner"
    (folder / "chat_template.jinja").write_text("outer")
    assert read_model(str(folder)).chat_template == "outer"


def test_missing_and_truncated_shards_are_all_named(folder: Path) -> None:
    (folder / "model-00001-of-00002.safetensors").unlink()
    second = folder / "model-00002-of-00002.safetensors"
    second.write_bytes(second.read_bytes()[:-1])
    said = refused(folder)
    assert "00001-of-00002.safetensors is missing" in said
    assert "00002-of-00002.safetensors is unusable, it is truncated" in said


def test_a_gap_in_the_numbering_is_found_without_an_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model-00001-of-00002.safetensors").unlink()
    assert "00001-of-00002.safetensors is missing" in refused(folder)


def test_a_tensor_of_the_index_that_no_shard_holds_is_named(folder: Path) -> None:
    write_shard(folder / "model-00002-of-00002.safetensors", ["mtp.fc.weight"])
    assert "no shard holds model.layers.0.mlp.up_proj.weight" in refused(folder)


def test_half_a_download_is_refused(folder: Path) -> None:
    (folder / "model-00001-of-00002.safetensors").write_text("version https://git-lfs.github.com")
    assert "Git LFS pointer" in refused(folder)


@pytest.mark.parametrize(
    ("content", "said"),
    [("{", "no JSON"), ("[]", "no table"), ("{}", "architectures"), ("[" * 100_000, "no JSON")],
)
def test_a_config_that_is_none_is_refused(folder: Path, content: str, said: str) -> None:
    (folder / "config.json").write_text(content)
    assert said in refused(folder)


def test_what_is_no_folder_is_refused(folder: Path) -> None:
    assert "no config.json" in refused(folder / "..")
    assert "it is a file" in refused(folder / "config.json")
    assert "no such folder" in refused("/does/not/exist")
    assert "none is named" in refused("")
    for shard in folder.glob("*.safetensors*"):
        shard.unlink()
    assert "no weights" in refused(folder)


def test_a_name_on_the_hub_is_left_to_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    card = read_model("Qwen/Qwen3-0.6B")
    assert (card.path, card.architecture, card.folder) == ("Qwen/Qwen3-0.6B", "", False)


def test_a_downloaded_hub_model_is_read(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path_factory.mktemp("hub")
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    snapshots = cache / "models--Qwen--Qwen3-0.6B" / "snapshots"
    snapshots.mkdir(parents=True)
    (snapshots / "abc").symlink_to(folder)
    card = read_model("Qwen/Qwen3-0.6B")
    assert (card.path, card.architecture) == ("Qwen/Qwen3-0.6B", "Qwen3ForCausalLM")
