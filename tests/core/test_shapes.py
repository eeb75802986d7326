"""Estimated weights of a configuration, against the weights that vLLM loaded for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from caovand.core.checkpoint.config_json import describe, invented_weights
from caovand.core.checkpoint.shapes import weights_by_shape
from caovand.core.facts.occupancy import with_memory_back
from caovand.engines.vllm.memory.candidate import Candidate
from caovand.engines.vllm.memory.shards import weights_bytes
from tests.core.machines import GIB, QWEN_27B_MEASURED, made_up, turing

SHAPE: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "hidden_size": 5120,
    "num_hidden_layers": 64, "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256,
    "intermediate_size": 17408, "vocab_size": 248320, "full_attention_interval": 4,
    "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "attn_output_gate": True,
    "max_position_embeddings": 262144,
}  # fmt: skip


def test_the_27b_shape_weighs_what_vllm_loaded() -> None:
    card = replace(
        QWEN_27B_MEASURED, weights=weights_by_shape(QWEN_27B_MEASURED, tied=False, gated=True)
    )
    loaded = weights_bytes(card, Candidate(16384, 1, 8192, 0.8, mtp=3))
    assert loaded / GIB == pytest.approx(51.02, rel=0.005)


@pytest.mark.parametrize(
    ("table", "gib"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 11.7),
        ({"quant_method": "compressed-tensors",
          "config_groups": {"g": {"weights": {"num_bits": 8}}}}, 22.7),
        ({"quant_method": "fp8"}, 22.7),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 13.0),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 11.3),
        ({"quant_method": "new"}, 45.3),
    ],
)  # fmt: skip
def test_quantised_weights_that_are_made_up_are_as_small(table: dict[str, Any], gib: float) -> None:
    config = {**SHAPE, "quantization_config": table}
    made = invented_weights(config, describe(config))
    assert sum(w.size for w in made if w.part == "layers") / GIB == pytest.approx(gib, rel=0.02)
    assert sum(w.size for w in made if w.part == "head") / GIB == pytest.approx(2.37, rel=0.01)


def test_of_gpt_oss_only_the_experts_are_quantised() -> None:
    """gpt-oss-20b's checkpoint has 10.15e9 bytes of experts."""
    config = {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_hidden_layers": 24,
        "hidden_size": 2880, "intermediate_size": 2880, "num_local_experts": 32,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
        "quantization_config": {"quant_method": "mxfp4"},
    }  # fmt: skip
    made = invented_weights(config, describe(config))
    experts = sum(w.size for w in made if w.part == "experts")
    assert experts == pytest.approx(10_150_000_000, rel=0.01)
    assert {w.dtype for w in made if w.part == "layers"} == {"BF16"}


def test_the_memory_of_a_running_engine_counts_as_free_for_its_successor() -> None:
    gpu = replace(turing(1)[0], free_mib=2000, users=((7, "VLLM::Worker", 20000), (9, "Xorg", 300)))
    assert with_memory_back((gpu,), {7})[0].free_mib == 22000
    assert with_memory_back((gpu,), set())[0].free_mib == 2000


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("deepseek-v2-lite", 31_412_968_448),
        ("qwen3-30b-a3b", 61_064_245_248),
        ("gemma-3-12b", 23_532_068_352),
        ("llama-3.1-8b", 16_060_522_496),
        ("mistral-small-24b", 47_144_806_400),
    ],
)
def test_parameters_of_mla_and_experts_add_up_to_what_vllm_made(name: str, size: int) -> None:
    """The bytes of all parameters that PyTorch counted after loading."""
    assert sum(w.size for w in made_up(name).weights) == pytest.approx(size, rel=0.001)


def test_a_quantised_mla_keeps_its_projection_as_floats_too() -> None:
    """DeepSeek V3 unsplit: 128 heads, 61 layers, 256 of 512 elements: 1.9 GiB; a view in bf16."""
    lite = made_up("deepseek-v2-lite")
    v3 = replace(lite, heads=128, layer_types=("full_attention",) * 61)
    load = Candidate(8192, 1, 2048, 0.9)
    fp8 = replace(v3, quantization="fp8")
    copied = 128 * 256 * 512 * 61 * 2
    assert weights_bytes(fp8, load) - weights_bytes(v3, load) == copied
    halved = replace(load, tensor_parallel=2)
    assert weights_bytes(replace(fp8, weights=()), halved) < weights_bytes(
        replace(fp8, weights=()), load
    )
    online = replace(load, quantization="fp8")
    assert weights_bytes(replace(v3, weights=()), online) > weights_bytes(
        replace(v3, weights=()), load
    )
    spared = replace(fp8, spared=frozenset({"attention"}))
    assert weights_bytes(spared, load) == weights_bytes(v3, load)
