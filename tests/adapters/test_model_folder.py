"""Model folders, whole and broken."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import socket
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.adapters.model_folder import ModelProblem, read_model
from caovand.adapters.model_folder import folder as folders
from tests.examples import examples
from tests.tiny_gguf import ARRAY, BOOL, assemble, value

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 2,
    "hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 1024,
    "mtp_num_hidden_layers": 1, "vocab_size": 512,
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
    assert "MTP head" in card.notes[0].fact


def test_a_head_that_no_key_announces_is_found_by_its_weights(folder: Path) -> None:
    """Qwen3-Next's config.json does not count it; a quantised copy lacks it, without a note."""
    config = json.loads((folder / "config.json").read_text())
    del config["mtp_num_hidden_layers"]
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "qwen3_next"}))
    assert read_model(str(folder)).mtp_layers == 1
    write_shard(folder / "model-00002-of-00002.safetensors", ["model.layers.0.mlp.up_proj.weight"])
    (folder / "model.safetensors.index.json").unlink()
    card = read_model(str(folder))
    assert (card.mtp_layers, card.notes) == (0, ())


def test_a_chat_template_is_found_where_it_may_be(folder: Path) -> None:
    assert read_model(str(folder)).chat_template is None
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "inner"}))
    assert read_model(str(folder)).chat_template == "inner"
    (folder / "chat_template.jinja").write_text("outer")
    assert read_model(str(folder)).chat_template == "outer"


def test_the_largest_file_is_known(folder: Path) -> None:
    write_shard(folder / "model-00001-of-00002.safetensors", ["model.embed_tokens.weight"], 4096)
    write_shard(folder / "other.safetensors", ["a"], 8192)  # not in the index
    (folder / "model.safetensors.index.json").write_text(
        json.dumps(
            {"weight_map": {"model.embed_tokens.weight": "model-00001-of-00002.safetensors"}}
        )
    )
    size = (folder / "model-00001-of-00002.safetensors").stat().st_size
    card = read_model(str(folder))
    assert (card.largest_file, card.pickled) == (size, False)


def test_pickled_weights_are_known_by_their_files(folder: Path) -> None:
    for shard in folder.glob("*.safetensors*"):
        shard.unlink()
    for name, size in (("pytorch_model-1.bin", 4096), ("pytorch_model-2.bin", 8192)):
        (folder / name).write_bytes(bytes(size))
    card = read_model(str(folder))
    assert (card.largest_file, card.pickled, card.size()) == (8192, True, 12288)


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
    assert "no shard contains model.layers.0.mlp.up_proj.weight" in refused(folder)


@contextmanager
def nobody() -> Iterator[None]:
    """As a user whose files these are not; files of mode 0 are closed to every other user too."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    "closed",
    ["config.json", "model-00002-of-00002.safetensors", "model.safetensors.index.json", "."],
)
def test_a_file_that_this_user_may_not_read_is_no_bad_download(folder: Path, closed: str) -> None:
    # pytest's own folders are closed to others; the system's temporary one is not.
    with tempfile.TemporaryDirectory() as open_place:
        os.chmod(open_place, 0o755)
        model = Path(open_place) / "model"
        shutil.copytree(folder, model)
        os.chmod(model / closed, 0)
        try:
            with nobody():
                said = refused(model)
        finally:
            os.chmod(model / closed, 0o700)
    assert "this user cannot read it" in said
    assert "chmod -R a+rX" in said
    assert "download" not in said


def test_a_folder_behind_a_closed_one_says_so(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as closed:
        shutil.copytree(folder, Path(closed) / "model")
        os.chmod(closed, 0)
        try:
            with nobody():
                said = refused(Path(closed) / "model")
        finally:
            os.chmod(closed, 0o700)
    assert "Permission denied" in said
    assert "chmod a+x" in said


@pytest.mark.parametrize("path", ["/" + "x" * 5000, "~nosuchuser/model"])
def test_a_path_that_can_be_none_is_refused(path: str) -> None:
    assert "cannot read model" in refused(path)


@pytest.mark.parametrize(
    "table",
    [None, [], {}, {"a": 1}, {"a": "../x.safetensors"}, {"a": "x" * 300}, {"a": "\ud800"}],
)
def test_an_index_that_names_no_files_is_refused(folder: Path, table: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    assert "model.safetensors.index.json" in refused(folder)


def test_what_is_no_regular_file_is_not_waited_for(folder: Path) -> None:
    shard = folder / "model-00002-of-00002.safetensors"
    shard.unlink()
    os.mkfifo(shard)
    assert "it is not a file" in refused(folder)
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    assert "it is not a file" in refused(folder)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
FILES = (
    "config.json", "tokenizer_config.json", "model.safetensors.index.json", "chat_template.json",
)  # fmt: skip


@examples(150)
@given(st.sampled_from(FILES), st.one_of(JSON, st.dictionaries(st.sampled_from(
    ["weight_map", "chat_template", "model_max_length", "architectures"]), JSON)))  # fmt: skip
def test_any_json_in_a_folder_makes_a_card_or_a_problem(name: str, content: Any) -> None:
    with tempfile.TemporaryDirectory() as place:
        model = Path(place)
        (model / "config.json").write_text(json.dumps(CONFIG))
        write_shard(model / "model.safetensors", ["model.embed_tokens.weight"])
        (model / name).write_text(json.dumps(content))
        try:
            card = read_model(place)
        except ModelProblem:
            return
    assert card.max_model_len > 0
    hash(card)  # plans are searched once for equal cards


def test_a_configuration_nobody_foresaw_is_refused_all_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def surprise(*_: object) -> None:
        raise KeyError("rope")

    monkeypatch.setattr(folders, "describe", surprise)
    assert "it cannot be parsed (KeyError" in refused(folder)


def test_half_a_download_is_refused(folder: Path) -> None:
    (folder / "model-00001-of-00002.safetensors").write_text("version https://git-lfs.github.com")
    assert "Git LFS pointer" in refused(folder)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not JSON"),
        ("[]", "contains no table"),
        ("{}", "architectures"),
        ("[" * 100_000, "its nesting is more than 64 levels deep"),
    ],
)
def test_a_config_that_is_none_is_refused(folder: Path, content: str, said: str) -> None:
    (folder / "config.json").write_text(content)
    assert said in refused(folder)


def test_what_is_no_folder_is_refused(folder: Path) -> None:
    assert "no config.json" in refused(folder / "..")
    assert "it is a file" in refused(folder / "config.json")
    assert "no such folder" in refused("/does/not/exist")
    assert "[model] path is empty" in refused("")
    for shard in folder.glob("*.safetensors*"):
        shard.unlink()
    assert "no weights" in refused(folder)


def test_a_mistyped_path_is_no_name_on_a_hub(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert "there is no such folder; set [model] path to a folder" in refused("models/Qwen3-8B")
    assert "by its full path" in refused("models/Qwen3-8B")
    assert f'did you mean "{folder}"? Otherwise set' in refused(folder.with_name(f"{folder.name}x"))
    assert "no such file; set [model] path to a GGUF file" in refused("/srv/none.gguf")
    assert "no such file" in refused("owner/none.gguf")
    assert 'no such folder; did you mean "/usr/bin"?' in refused("usr/bin")


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


def test_a_quantisation_in_a_file_of_its_own_is_read(folder: Path) -> None:
    said = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
    (folder / "hf_quant_config.json").write_text(json.dumps(said))
    assert read_model(str(folder)).quantization == "modelopt"
    (folder / "config.json").write_text(
        json.dumps({**CONFIG, "quantization_config": {"quant_method": "awq"}})
    )
    card = read_model(str(folder))
    assert (card.quantization, card.spared) == ("awq", {"MLP"})  # whose weights are BF16


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "tokenizer_config.json",
        "model.safetensors.index.json",
        "chat_template.jinja",
        "model-00001-of-00002.safetensors",
    ],
)
@pytest.mark.parametrize("what", ["fifo", "endless", "huge", "socket"])
def test_nothing_in_a_folder_is_waited_for_or_read_without_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, what: str
) -> None:
    path = folder / name
    path.unlink(missing_ok=True)
    if what == "fifo":
        os.mkfifo(path)
    elif what == "endless":
        path.symlink_to("/dev/zero")
    elif what == "huge":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    else:
        monkeypatch.chdir(folder)  # a socket's path ends at 107 bytes
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelProblem, match=re.escape(name)):
        read_model(str(folder))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


def test_a_file_behind_a_link_is_read_as_the_hub_s_caches_have_it(folder: Path) -> None:
    blob = folder / "blob"
    (folder / "config.json").rename(blob)
    (folder / "config.json").symlink_to(blob)
    assert read_model(str(folder)).architecture


def test_many_links_to_one_file_cost_no_more_than_the_budget_of_one_model(tmp_path: Path) -> None:
    """A split file of 20 links took 2.7 GiB; shards may be links as well."""
    values = {"a": value(ARRAY, (BOOL, []))}
    data = assemble(values, {}, {})
    at = data.index(b"a" + value(ARRAY, (BOOL, []))) + 9
    data = data[:at] + struct.pack("<Q", 4_000_000) + bytes(4_000_064)
    (tmp_path / "data").write_bytes(data)
    for number in range(1, 51):
        (tmp_path / f"m-{number:05}-of-00050.gguf").symlink_to("data")
    with pytest.raises(ModelProblem, match="it exceeds the limit for all headers"):
        read_model(str(tmp_path / "m-00001-of-00050.gguf"))
    shards, head = tmp_path / "shards", b'{"__metadata__":{"a":"' + b"x" * 4_000_000 + b'"}}'
    shards.mkdir()
    (shards / "config.json").write_text(json.dumps(CONFIG))
    (shards / "data").write_bytes(struct.pack("<Q", len(head)) + head)
    for number in range(1, 51):
        (shards / f"m-{number:05}-of-00050.safetensors").symlink_to("data")
    with pytest.raises(ModelProblem, match=r"m-00042-of-00050.*it exceeds the 160 MiB"):
        read_model(str(shards))


def test_a_table_of_too_many_values_is_refused_before_it_is_parsed(folder: Path) -> None:
    keys = ",".join(f'"{n:x}":1' for n in range(700_000))
    (folder / "tokenizer_config.json").write_text("{" + keys + "}")
    with pytest.raises(ModelProblem, match="more than 600,000 values; serve another"):
        read_model(str(folder))


def test_half_a_million_tensors_are_a_model(folder: Path) -> None:
    """Qwen3.5-397B in GPTQ has 370,000: an indented index of 42 MiB, and 49 MiB of headers."""
    stem = "model.language_model.layers.{}.mlp.experts.{}.gate_proj.{}"
    kinds = ("qweight", "qzeros", "scales", "g_idx")
    names = [
        stem.format(layer, expert, kind)
        for layer in range(260)
        for expert in range(512)
        for kind in kinds
    ]
    table = {}
    for at in range(0, len(names), 50_000):
        shard = f"m{at}.safetensors"
        write_shard(folder / shard, names[at : at + 50_000])
        table.update(dict.fromkeys(names[at : at + 50_000], shard))
    index = json.dumps({"weight_map": table}, indent=2)
    assert len(table) > 500_000
    assert len(index) > 45 << 20
    (folder / "model.safetensors.index.json").write_text(index)
    assert read_model(str(folder)).size() == 8 * len(names)


def test_an_index_beyond_the_limit_is_no_bad_download(folder: Path) -> None:
    with (folder / "model.safetensors.index.json").open("wb") as index:
        index.truncate(81 << 20)
    with pytest.raises(ModelProblem, match=r"larger than 80 MiB; serve another checkpoint"):
        read_model(str(folder))
