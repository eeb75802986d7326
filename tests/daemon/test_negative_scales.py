"""When scales are read before planning, and what happens to unreadable files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from caovand.adapters.engine import scales
from caovand.adapters.model_folder import ModelProblem
from caovand.core.config.parser import parse
from caovand.core.config.schema import Config
from caovand.preparation.model import read_model
from tests.adapters.test_scales import floats, write

QUANTISED = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}


@pytest.fixture
def gptq(tmp_path: Path) -> Path:
    """A GPTQ model of two shards; the second has a negative scale."""
    sizes = {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 4}
    config = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 512,
        "max_position_embeddings": 1024, "quantization_config": QUANTISED, **sizes,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text("{}")
    for number, value in ((1, 1.0), (2, -1.0)):
        shard = tmp_path / f"model-0000{number}-of-00002.safetensors"
        write(shard, {f"layers.{number}.scales": ("F16", floats("F16", value))})
    return tmp_path


def asking(folder: Path, *words: str, **policy: str) -> Config:
    document = {"model": {"path": str(folder)}, "policy": policy}
    return parse({**document, "engine": {"extra_args": list(words)}})


def test_scales_are_read_only_where_int8_activations_are_asked_for(gptq: Path) -> None:
    int8 = asking(gptq, activations="int8")
    assert read_model(asking(gptq), {}).negative_scale is None
    assert read_model(int8, {}).negative_scale == "layers.2.scales"
    invented = asking(gptq, "--load-format", "dummy", activations="int8")
    assert read_model(invented, {}).negative_scale is None
    write(gptq / "model-00002-of-00002.safetensors", {"b.scales": ("F16", floats("F16", 2.0))})
    assert read_model(int8, {}).negative_scale == ""
    (gptq / "consolidated.safetensors").touch()  # of no index, so nobody reads it
    table = {
        f"{name}.scales": f"model-0000{n}-of-00002.safetensors" for n, name in ((1, "a"), (2, "b"))
    }
    write(gptq / table["a.scales"], {"a.scales": ("F16", floats("F16", 1.0))})
    (gptq / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    assert read_model(int8, {}).negative_scale == ""
    for shard in (*gptq.glob("*.safetensors"), gptq / "model.safetensors.index.json"):
        shard.unlink()
    (gptq / "pytorch_model.bin").write_bytes(b"")
    assert read_model(int8, {}).negative_scale is None


def test_scales_that_cannot_be_read_are_a_problem(
    gptq: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    int8 = asking(gptq, activations="int8")
    write(gptq / "model-00001-of-00002.safetensors", {"a.scales": ("I8", b"\x01")})
    with pytest.raises(
        ModelProblem, match=r"cannot read .*00001.*type I8.*download the file again"
    ):
        read_model(int8, {})

    def broken(_: Path) -> str:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(scales, "find_negative", broken)
    with pytest.raises(ModelProblem, match=r"Input/output error; check the disk"):
        read_model(int8, {})
