"""The drafter that the configuration names, read into the card of its target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.model_folder import ModelProblem, read_model, with_drafter
from caovand.core.config.parser import parse
from caovand.preparation import model as configured
from tests.adapters.test_model_folder import CONFIG as TARGET
from tests.adapters.test_model_folder import write_shard

READS = (0, 1)
CONFIG: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_hidden_layers": 3,
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "vocab_size": 512, "max_position_embeddings": 1024, "block_size": 8, "num_target_layers": 2,
    "dflash_config": {"mask_token_id": 7, "target_layer_ids": list(READS)},
}  # fmt: skip
TENSORS = ["layers.0.mlp.up_proj.weight", "layers.2.self_attn.k_proj.weight", "hidden_norm.weight"]
SIZE = 1 << 20


def target(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TARGET))
    (folder / "tokenizer.json").write_text("{}")
    names = ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "mtp.fc.weight"]
    write_shard(folder / "model.safetensors", names)
    return folder


def drafter(folder: Path, **changes: Any) -> str:
    folder.mkdir()
    config = {key: value for key, value in {**CONFIG, **changes}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    write_shard(folder / "model.safetensors", TENSORS, SIZE)
    return str(folder)


def test_a_drafter_replaces_the_mtp_head(tmp_path: Path) -> None:
    own = read_model(str(target(tmp_path / "target")))
    assert own.size("mtp") == 8
    card = with_drafter(own, drafter(tmp_path / "drafter"))
    found = card.drafter
    assert found is not None
    assert (found.block, found.depth, found.reads, found.target_layers) == (8, 7, READS, 2)
    assert (found.layers, found.heads, found.kv_heads, found.head_dim) == (3, 4, 2, 32)
    assert card.mtp_layers == 3
    assert card.size("mtp") == len(TENSORS) * SIZE
    by_sharding = {one.sharding: one.size for one in card.weights if one.part == "mtp"}
    projection = len(READS) * 64 * 64 * 2
    assert by_sharding["kv"] == SIZE
    assert by_sharding["sharded"] == SIZE - projection
    assert [w for w in card.weights if w.part != "mtp"] == [
        w for w in own.weights if w.part != "mtp"
    ]


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        (
            {"architectures": ["LlamaForCausalLMEagle3"]},
            "its architecture is LlamaForCausalLMEagle3",
        ),
        ({"block_size": None}, "lacks block_size"),
        ({"dflash_config": None}, "target_layer_ids in dflash_config"),
        ({"dflash_config": {"target_layer_ids": ["a"]}}, "target_layer_ids in dflash_config"),
    ],
)
def test_what_is_no_drafter_is_refused(tmp_path: Path, changes: dict[str, Any], fact: str) -> None:
    own = read_model(str(target(tmp_path / "target")))
    place = drafter(tmp_path / "drafter", **changes)
    with pytest.raises(ModelProblem, match=fact) as refused:
        with_drafter(own, place)
    assert "--speculative-config" in refused.value.problem.remedy


def test_a_drafter_on_the_hub_must_be_pulled_first(tmp_path: Path) -> None:
    own = read_model(str(target(tmp_path / "target")))
    with pytest.raises(ModelProblem, match="not on this machine") as refused:
        with_drafter(own, "nobody/a-drafter-that-was-never-pulled")
    assert "caovanctl model pull nobody/" in refused.value.problem.remedy


def test_the_key_names_it_for_vllm_alone(tmp_path: Path) -> None:
    model = {"path": str(target(tmp_path / "target")), "drafter": drafter(tmp_path / "drafter")}
    config = parse({"model": model})
    assert configured.read_model(config, {}).drafter
    own = ["--speculative-config", '{"method":"ngram","num_speculative_tokens":3}']
    assert (
        configured.read_model(parse({"model": model, "engine": {"extra_args": own}}), {}).drafter
        is None
    )
    other = parse({"model": model, "engine": {"kind": "sglang"}})
    with pytest.raises(
        ModelProblem, match=r"\[model\] drafter is for vLLM, but the engine is SGLang"
    ):
        configured.read_model(other, {})
