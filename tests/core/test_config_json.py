"""config.json, read as vLLM reads it."""

from __future__ import annotations

from typing import Any

import pytest

from caovand.core.checkpoint.config_json import describe
from caovand.core.checkpoint.tensors import part_of_tensor, sharding, sum_sizes
from caovand.core.checkpoint.values import BadConfig
from caovand.core.facts.inventory import LinearAttention
from caovand.engines.vllm.memory.candidate import Candidate
from caovand.engines.vllm.memory.kv_cache import layout_for, token_bytes

TEXT: dict[str, Any] = {
    "model_type": "qwen3_5_text", "hidden_size": 64, "num_hidden_layers": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 100,
    "full_attention_interval": 4, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
    "mtp_num_hidden_layers": 1, "max_position_embeddings": 4096, "mamba_ssm_dtype": "float32",
}  # fmt: skip
DENSE = {
    "architectures": ["A"],
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
}


@pytest.mark.parametrize(
    ("stated", "computed"),
    [
        ({"torch_dtype": "float32"}, "bfloat16"),
        ({"dtype": "torch.float32"}, "bfloat16"),
        ({"torch_dtype": "float16"}, "float16"),
        ({}, "bfloat16"),
    ],
)
def test_float32_checkpoints_are_loaded_in_16_bits(stated: dict[str, str], computed: str) -> None:
    assert describe({**DENSE, **stated}).dtype == computed


def test_a_multimodal_wrapper_is_read_through() -> None:
    card = describe({"architectures": ["X"], "text_config": TEXT, "vision_config": {"depth": 1}})
    assert card.layer_types == (("linear_attention",) * 3 + ("full_attention",)) * 2
    assert card.hybrid
    assert card.vision
    assert (card.mtp_layers, card.kv_heads, card.max_model_len) == (1, 2, 4096)
    assert card.linear is not None
    assert card.linear.state_dtype == "float32"


@pytest.mark.parametrize(
    ("more", "tokenizer", "limit"),
    [
        ({}, {}, 2048),
        ({"max_position_embeddings": 8192}, {}, 8192),
        ({"max_position_embeddings": 8192}, {"model_max_length": 4096}, 8192),
        (
            {"max_position_embeddings": 514, "position_embedding_type": "absolute"},
            {"model_max_length": 512},
            512,
        ),
        (
            {"max_position_embeddings": 514, "model_type": "bert"},
            {"model_max_length": 512},
            512,
        ),
        (
            {
                "max_position_embeddings": 514,
                "model_type": "bert",
                "position_embedding_type": "rope",
            },
            {"model_max_length": 512},
            514,
        ),
        ({"max_position_embeddings": 8192}, {"model_max_length": 1e30}, 8192),
        ({"max_position_embeddings": 514, "model_type": "roberta"}, {}, 512),
        (
            {"max_position_embeddings": 8194, "model_type": "xlm-roberta", "pad_token_id": 1},
            {},
            8192,
        ),
        (
            {"max_position_embeddings": 514, "model_type": "camembert"},
            {"model_max_length": 128},
            128,
        ),
        (
            {
                "max_position_embeddings": 8194,
                "model_type": "xlm-roberta",
                "position_embedding_type": "rotary",
            },
            {},
            8194,
        ),
        (
            {
                "max_position_embeddings": 32768,
                "rope_scaling": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 32768,
                },
            },
            {},
            131072,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {"rope_type": "llama3", "factor": 8},
            },
            {},
            131072,
        ),
    ],
)
def test_the_context_limit_is_vllms(
    more: dict[str, Any], tokenizer: dict[str, Any], limit: int
) -> None:
    assert describe({**DENSE, **more}, tokenizer).max_model_len == limit


def test_quantisation_and_latent_attention_are_seen() -> None:
    card = describe(
        {
            **DENSE,
            "quantization_config": {"quant_method": "awq", "group_size": 128},
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
        }
    )
    assert (card.quantization, card.group_size, card.latent) == ("awq", 128, 576)
    assert card.indexer == 0


def test_the_keys_of_a_sparse_attentions_indexer_take_cache_too() -> None:
    """DeepSeek-V3.2: 128 elements of fp8 and a scale, next to 576 of 16 bits."""
    card = describe({**DENSE, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128})
    assert card.indexer == 132
    assert token_bytes(card, "auto", 8, 2) == 576 * 2 + 132


@pytest.mark.parametrize(
    ("table", "method", "group"),
    [
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "modelopt", 0),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, "modelopt_fp4", 16),
        ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, "modelopt_mxfp8", 0),
        (
            {
                "producer": {"name": "modelopt"},
                "quantization": {"quant_algo": "NVFP4", "group_size": 16},
            },
            "modelopt_fp4",
            16,
        ),
        ({"quant_method": "AWQ"}, "awq", 0),
        ({"bits": 4}, "unknown", 0),
    ],
)
def test_a_method_is_called_as_vllm_calls_it(
    table: dict[str, Any], method: str, group: int
) -> None:
    card = describe({**DENSE, "quantization_config": table})
    assert (card.quantization, card.group_size) == (method, group)


@pytest.mark.parametrize(
    ("more", "shared", "dense"),
    [
        ({}, 0, 0),
        ({"n_shared_experts": 2, "first_k_dense_replace": 1}, 2816, 10944),
        ({"shared_expert_intermediate_size": 512, "decoder_sparse_step": 1}, 512, 0),
        ({"mlp_only_layers": [0]}, 0, 10944),
        ({"interleave_moe_layer_step": 2, "intermediate_size_mlp": 16384}, 0, 16384),
        ({"model_type": "gemma4_text"}, 0, 10944),
    ],
)
def test_what_stands_beside_experts_is_seen(more: dict[str, Any], shared: int, dense: int) -> None:
    moe = {**DENSE, "num_experts": 64, "moe_intermediate_size": 1408, "intermediate_size": 10944}
    card = describe({**moe, **more})
    assert (card.shared_size, card.dense_size) == (shared, dense)


def test_a_window_without_a_pattern_is_that_of_every_layer() -> None:
    """Mistral-7B-v0.1: what a request keeps does not grow beyond its window."""
    card = describe({**DENSE, "model_type": "mistral", "sliding_window": 4096})
    assert card.layer_types == ("sliding_attention",) * 2
    needed = layout_for(card, Candidate(4096, 1, 2048, 0.9)).needed
    assert needed(32768) == needed(16384) > needed(4096)
    later = describe({**DENSE, "model_type": "mistral", "sliding_window": None})
    assert later.layer_types == ("full_attention",) * 2
    other = describe({**DENSE, "model_type": "qwen2", "sliding_window": 4096})
    assert other.layer_types == ("full_attention",) * 2


def test_heads_that_are_not_told_have_no_width() -> None:
    card = describe({**DENSE, "num_attention_heads": None, "head_dim": None})
    assert (card.heads, card.kv_heads, card.head_dim) == (1, 1, 0)


def test_a_window_that_is_not_used_is_none() -> None:
    more = {"sliding_window": 4096, "use_sliding_window": False}
    assert describe({**DENSE, **more}).sliding_window == 0


@pytest.mark.parametrize("config", [{}, {"architectures": []}, {"architectures": "x"}])
def test_a_config_of_no_model_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(BadConfig):
        describe(config)


@pytest.mark.parametrize(
    ("name", "where", "how"),
    [
        ("model.embed_tokens.weight", "embedding", "sharded"),
        ("lm_head.weight", "head", "sharded"),
        ("model.language_model.layers.0.mlp.up_proj.qweight", "layers", "sharded"),
        ("model.layers.0.self_attn.k_proj.weight", "layers", "kv"),
        ("model.layers.0.input_layernorm.weight", "layers", "replicated"),
        ("model.layers.3.mlp.experts.7.up_proj.weight", "experts", "sharded"),
        ("model.layers.3.mlp.gate.weight", "layers", "replicated"),
        ("model.visual.blocks.0.attn.qkv.weight", "vision", "sharded"),
        ("mtp.layers.0.self_attn.q_proj.weight", "mtp", "sharded"),
        ("model.layers.61.eh_proj.weight", "mtp", "sharded"),
    ],
)
def test_a_tensors_name_tells_its_part_and_its_split(name: str, where: str, how: str) -> None:
    assert part_of_tensor(name, 61) == where
    assert sharding(name) == how


def test_full_attention_has_heads_of_its_own_where_the_configuration_says_so() -> None:
    sizes = {"head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 2}
    card = describe({**DENSE, **sizes, "attention_k_eq_v": True})
    assert (card.head_dim, card.global_head_dim, card.global_kv_heads) == (256, 512, 2)
    assert describe({**DENSE, **sizes}).global_kv_heads == 0  # vLLM asks for attention_k_eq_v


GEMMA_3: dict[str, Any] = {
    "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
    "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}  # fmt: skip
"""The text part of gemma-3-4b-it as it was published."""


def test_what_a_family_leaves_out_is_what_transformers_fills_in() -> None:
    card = describe({"architectures": ["G"], "model_type": "gemma3", "text_config": GEMMA_3})
    assert (card.max_model_len, card.limit_known) == (131072, True)
    assert (card.heads, card.kv_heads, card.head_dim, card.vocab_size) == (8, 4, 256, 262208)
    assert card.layer_types.count("full_attention") == 5
    assert card.layer_types[:6] == ("sliding_attention",) * 5 + ("full_attention",)
    assert (card.sliding_window, card.notes) == (1024, ())
    written = {**GEMMA_3, "num_key_value_heads": 2, "vocab_size": None}
    card = describe({"architectures": ["G"], "model_type": "gemma3", "text_config": written})
    assert (card.kv_heads, card.vocab_size) == (2, 262208)


def test_layers_that_share_a_cache_are_counted() -> None:
    card = describe({**DENSE, "num_kv_shared_layers": 1})
    assert len(card.cached_layers) == len(card.layer_types) - 1
    assert describe(DENSE).cached_layers == describe(DENSE).layer_types


def test_a_limit_that_is_not_written_down_is_not_known() -> None:
    assert not describe(DENSE).limit_known
    assert describe({**DENSE, "n_positions": 1024}).limit_known


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        (
            {
                "model_type": "granitemoehybrid", "mamba_n_groups": 1, "mamba_n_heads": 8,
                "mamba_d_head": "auto", "mamba_d_state": 128, "mamba_d_conv": 4, "mamba_expand": 2,
                "layer_types": ["mamba", "attention"],
            },
            (1, 8, 128, 16, 4, "auto"),
        ),
        (
            {
                "model_type": "nemotron_h", "n_groups": 8, "mamba_num_heads": 128,
                "mamba_head_dim": 64, "ssm_state_size": 128, "conv_kernel": 4,
                "hybrid_override_pattern": "M*",
            },
            (8, 128, 128, 64, 4, "float32"),
        ),
    ],
)  # fmt: skip
def test_the_shape_of_mamba_2_is_read(sizes: dict[str, Any], shape: tuple[Any, ...]) -> None:
    card = describe({**DENSE, **sizes})
    assert card.mamba == LinearAttention(*shape)
    assert card.layer_types == ("mamba", "full_attention")
    assert describe(DENSE).mamba is None


def test_tensors_are_weighed_as_if_each_name_were_looked_at() -> None:
    names = [
        "model.embed_tokens.weight", "lm_head.weight", "mtp.layers.0.fc.weight", "strange\ud800",
        "model.visual.blocks.31.attn.weight", "model.visual.blocks.0.attn.weight",
        *(f"model.layers.{n}.mlp.experts.{e}.up_proj.weight" for n in range(12) for e in (0, 10)),
        *(f"model.layers.{n}.input_layernorm.weight" for n in range(12)),
        *(f"model.layers.{n}.self_attn.k_proj.weight" for n in range(12)),
    ]  # fmt: skip
    for layers in (0, 10):
        sums: dict[tuple[str, str], int] = {}
        for size, name in enumerate(names, 1):
            key = part_of_tensor(name, layers), sharding(name)
            sums[key] = sums.get(key, 0) + size
        found = sum_sizes(((name, "BF16", size) for size, name in enumerate(names, 1)), layers)
        assert {(w.part, w.sharding): w.size for w in found} == sums
        assert any(w.part == "mtp" and w.sharding == "kv" for w in found) is (layers == 10)


@pytest.mark.parametrize(
    ("more", "layers"),
    [
        ({"model_type": "qwen3_next"}, 1),
        ({"model_type": "qwen3_next", "num_nextn_predict_layers": 0}, 0),
        ({"model_type": "qwen3"}, 0),
        ({"model_type": "glm4_moe", "num_nextn_predict_layers": 1}, 1),
        ({"model_type": "mimo_v2_flash", "architectures": ["MiMoV2FlashForCausalLM"]}, 1),
        ({"model_type": "minimax_m2", "num_mtp_modules": 3}, 0),
        ({"model_type": "minimax_m3_vl", "num_mtp_modules": 3}, 3),
        ({"model_type": "inkling_model", "mtp_config": {"num_nextn_predict_layers": 2}}, 2),
    ],
)
def test_mtp_layers_are_counted_as_vllm_counts_them(more: dict[str, Any], layers: int) -> None:
    assert describe({**DENSE, **more}).mtp_layers == layers


def test_what_an_mtp_head_shares_with_the_model_weighs_nothing() -> None:
    """GLM-4.5 and DeepSeek publish a copy of both in the layer of the head."""
    names = {
        "model.embed_tokens.weight": 100, "lm_head.weight": 100,
        "model.layers.2.embed_tokens.weight": 100, "model.layers.2.shared_head.head.weight": 100,
        "model.layers.2.shared_head.norm.weight": 1, "model.layers.2.eh_proj.weight": 7,
    }  # fmt: skip
    found = sum_sizes(((name, "BF16", size) for name, size in names.items()), 2)
    sums = {
        part: sum(w.size for w in found if w.part == part) for part in ("embedding", "head", "mtp")
    }
    assert sums == {"embedding": 100, "head": 100, "mtp": 8}
