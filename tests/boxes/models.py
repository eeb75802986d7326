"""The models of the table, from the sizes in their published config.json, without weights.

Weights are those that the shapes give; what differs in the published files is added. `DERIVED`
names the models whose numbers were not copied but follow from their family's: they may be off
by a little, and no forecast is measured with them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from caovand.core.checkpoint.config_json import describe, invented_weights
from caovand.core.checkpoint.model_task import SentenceTransformer, with_task
from caovand.core.facts.inventory import ModelCard, Weights
from tests.core.machines import GEMMA_4, GIB, QWEN_27B_AWQ, STARTS

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
FP8_CHANNELS = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"},
            "input_activations": {
                "num_bits": 8, "type": "float", "dynamic": True, "strategy": "token",
                "symmetric": True,
            },
        }
    },
    "ignore": ["lm_head"],
}  # fmt: skip
HYBRID = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "vision_config": {"depth": 27},
}
GATED_DELTA = {
    "model_type": "qwen3_5_text", "vocab_size": 248320, "max_position_embeddings": 262144,
    "head_dim": 256, "full_attention_interval": 4, "attn_output_gate": True,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_num_key_heads": 16, "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1,
    "dtype": "bfloat16", "partial_rotary_factor": 0.25,
}  # fmt: skip
QWEN_27B = {
    **GATED_DELTA, "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64,
    "num_attention_heads": 24, "num_key_value_heads": 4, "linear_num_value_heads": 48,
}  # fmt: skip
QWEN_9B = {
    **GATED_DELTA, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32,
    "num_attention_heads": 16, "num_key_value_heads": 4, "linear_num_value_heads": 32,
}  # fmt: skip
QWEN_35B_A3B = {
    **GATED_DELTA, "model_type": "qwen3_5_moe_text", "hidden_size": 2048, "num_hidden_layers": 40,
    "num_attention_heads": 16, "num_key_value_heads": 2, "linear_num_value_heads": 32,
    "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}  # fmt: skip
QWEN_NEXT = {
    **{name: size for name, size in GATED_DELTA.items() if name != "mtp_num_hidden_layers"},
    "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": 2048,
    "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2,
    "linear_num_value_heads": 32, "num_experts": 512, "num_experts_per_tok": 10,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "vocab_size": 151936,
}  # fmt: skip
LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192,
    "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "dtype": "float16",
    "max_position_embeddings": 131072, "rope_theta": 500000.0,
}  # fmt: skip
GEMMA_31B = {
    "architectures": ["Gemma4ForConditionalGeneration"], "vision_config": {"depth": 27},
    "text_config": {
        "model_type": "gemma4_text", "hidden_size": 5376, "intermediate_size": 21504,
        "num_hidden_layers": 60, "num_attention_heads": 32, "num_key_value_heads": 16,
        "head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 4,
        "attention_k_eq_v": True, "sliding_window": 1024, "vocab_size": 262144,
        "max_position_embeddings": 262144, "tie_word_embeddings": True, "dtype": "bfloat16",
        "use_bidirectional_attention": "vision",
    },
}  # fmt: skip
R1 = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1,
    "first_k_dense_replace": 3, "vocab_size": 129280, "max_position_embeddings": 163840,
    "num_nextn_predict_layers": 1, "dtype": "bfloat16",
}  # fmt: skip
DISTILL_32B = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 5120,
    "intermediate_size": 27648, "num_hidden_layers": 64, "num_attention_heads": 40,
    "num_key_value_heads": 8, "vocab_size": 152064, "max_position_embeddings": 131072,
    "dtype": "bfloat16",
}  # fmt: skip
QWEN_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_key_value_heads": 4,
    "head_dim": 128, "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8,
    "max_position_embeddings": 262144, "dtype": "bfloat16",
}  # fmt: skip
QWEN_235B = {
    **QWEN_MOE, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 94,
    "num_attention_heads": 64, "moe_intermediate_size": 1536,
}  # fmt: skip
CODER_480B = {
    **QWEN_MOE, "hidden_size": 6144, "intermediate_size": 8192, "num_hidden_layers": 62,
    "num_attention_heads": 96, "num_key_value_heads": 8, "moe_intermediate_size": 2560,
    "num_experts": 160,
}  # fmt: skip
GLM_AIR = {
    "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "hidden_size": 4096,
    "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 46,
    "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "n_routed_experts": 128,
    "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "vocab_size": 151552, "max_position_embeddings": 131072, "num_nextn_predict_layers": 1,
    "dtype": "bfloat16",
}  # fmt: skip
MINIMAX_M2 = {
    "architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2", "hidden_size": 3072,
    "intermediate_size": 1536, "num_hidden_layers": 62, "num_attention_heads": 48,
    "num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 256, "num_experts_per_tok": 8,
    "vocab_size": 200064, "max_position_embeddings": 196608, "dtype": "bfloat16",
}  # fmt: skip
QWEN_32B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 5120,
    "intermediate_size": 25600, "num_hidden_layers": 64, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "max_position_embeddings": 40960, "dtype": "bfloat16",
}  # fmt: skip
XLM_R = {
    "model_type": "xlm-roberta", "hidden_size": 1024, "intermediate_size": 4096,
    "num_hidden_layers": 24, "num_attention_heads": 16, "vocab_size": 250002,
    "max_position_embeddings": 8194, "torch_dtype": "float32",
}  # fmt: skip
QWEN3_4B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 2560,
    "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151669, "dtype": "bfloat16",
    "max_position_embeddings": 40960, "tie_word_embeddings": True,
}  # fmt: skip
PHI_4 = {
    "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_size": 5120,
    "intermediate_size": 17920, "num_hidden_layers": 40, "num_attention_heads": 40,
    "num_key_value_heads": 10, "vocab_size": 100352, "max_position_embeddings": 16384,
    "dtype": "bfloat16",
}  # fmt: skip
QWEN_VL_7B = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl",
    "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
    "max_position_embeddings": 128000, "dtype": "bfloat16",
    "vision_config": {
        "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
        "out_hidden_size": 3584, "patch_size": 14, "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
}  # fmt: skip
VISION_GIB = {"Qwen2.5-VL": 1.26, "Qwen3.6": 0.84, "Qwen3.5": 0.84, "gemma-4": 1.02}


def _hybrid(text: Mapping[str, Any], quantised: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {**HYBRID, "text_config": text, "quantization_config": quantised}


def _quantised(config: Mapping[str, Any], how: Mapping[str, Any]) -> dict[str, Any]:
    return {**config, "quantization_config": how}


def _started(name: str, how: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The config.json of a model that was started, perhaps quantised."""
    config = json.loads((STARTS / "models" / f"{name}.json").read_text())
    return _quantised(config, how) if how else config


CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "Qwen3.6-27B": _hybrid(QWEN_27B),
    "Qwen3.6-27B-FP8": _hybrid(QWEN_27B, FP8),
    "Qwen3.6-27B-GPTQ-Int4": _hybrid(QWEN_27B, GPTQ),
    "Qwen3.6-27B-AWQ-g32": _hybrid(QWEN_27B, {**AWQ, "group_size": 32}),
    "Qwen3.5-9B": _hybrid(QWEN_9B),
    "Qwen3.5-9B-FP8": _hybrid(QWEN_9B, FP8),
    "Qwen3.5-9B-AWQ": _hybrid(QWEN_9B, AWQ),
    "Qwen3.5-9B-GPTQ-Int4": _hybrid(QWEN_9B, GPTQ),
    "Qwen3.5-35B-A3B-AWQ": _hybrid(QWEN_35B_A3B, AWQ),
    "Qwen3.5-35B-A3B": _hybrid(QWEN_35B_A3B),
    "Qwen3-Next-80B-A3B": QWEN_NEXT,
    "Llama-3.1-8B": _started("llama-3.1-8b"),
    "Llama-3.1-8B-AWQ": _started("llama-3.1-8b", AWQ),
    "Llama-3.3-70B-AWQ": _quantised(LLAMA_70B, AWQ),
    "gpt-oss-20b": _started("gpt-oss-20b"),
    "gpt-oss-120b": {
        **_started("gpt-oss-20b"), "num_hidden_layers": 36, "num_local_experts": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 18,
    },
    "gemma-4-31B": GEMMA_31B,
    "gemma-4-31B-AWQ": _quantised(GEMMA_31B, AWQ),
    "DeepSeek-R1": _quantised(R1, FP8),
    "DeepSeek-R1-AWQ": _quantised(R1, {**AWQ, "group_size": 64}),
    "R1-Distill-Qwen-32B": DISTILL_32B,
    "R1-Distill-Qwen-32B-AWQ": _quantised(DISTILL_32B, AWQ),
    "R1-Distill-Llama-8B": _started("llama-3.1-8b"),
    "Phi-4": PHI_4,
    "Mistral-Small-24B": _started("mistral-small-24b"),
    "Qwen3-8B": {**_started("qwen3-8b"), "max_position_embeddings": 40960},
    "Qwen3-30B-A3B-AWQ": _started("qwen3-30b-a3b-awq"),
    "Qwen3-235B-A22B-FP8": _quantised(QWEN_235B, FP8),
    "Qwen3-235B-A22B-AWQ": _quantised(QWEN_235B, AWQ),
    "Qwen3-Next-80B-A3B-FP8": _quantised(QWEN_NEXT, FP8),
    "GLM-4.5-Air-FP8": _quantised(GLM_AIR, FP8_CHANNELS),
    "Qwen3-Coder-480B-A35B-FP8": _quantised(CODER_480B, FP8),
    "GLM-4.5-Air-AWQ": _quantised(GLM_AIR, AWQ),
    "GLM-4.5-Air-AWQ-16bit-shared": _quantised(
        GLM_AIR, {**AWQ, "modules_to_not_convert": ["shared_experts", "model.layers.0."]}
    ),
    "MiniMax-M2": _quantised(MINIMAX_M2, FP8),
    "Qwen3-32B-AWQ": _quantised(QWEN_32B, AWQ),
    "Qwen2.5-VL-7B": QWEN_VL_7B,
    "Qwen2.5-VL-7B-AWQ": _quantised(QWEN_VL_7B, AWQ),
    "bge-m3": {"architectures": ["XLMRobertaModel"], **XLM_R},
    "bge-reranker-v2-m3": {
        "architectures": ["XLMRobertaForSequenceClassification"], **XLM_R, "num_labels": 1,
    },
    "Qwen3-Embedding-4B": QWEN3_4B,
    "Qwen3-Reranker-4B": QWEN3_4B,
}  # fmt: skip
SENTENCES: Mapping[str, SentenceTransformer] = {
    "bge-m3": SentenceTransformer(pools=True, pooling="cls", max_tokens=8192),
    "Qwen3-Embedding-4B": SentenceTransformer(pools=True, pooling="last"),
}
"""What the files of Sentence Transformers say."""
WITH_FILES: Mapping[str, ModelCard] = {
    "Qwen3.6-27B-AWQ": QWEN_27B_AWQ,
    "gemma-4-26B-A4B": GEMMA_4,
}
"""Those whose weights are known from their files."""
DERIVED = (
    "Qwen3.5-9B", "Qwen3.5-35B-A3B", "Qwen3-Next", "gemma-4-31B", "gemma-4-26B-A4B-AWQ",
    "DeepSeek-R1-AWQ", "bge",
)  # fmt: skip


@cache
def model(name: str) -> ModelCard:
    """The model of this name."""
    if name == "gemma-4-26B-A4B-AWQ":
        return _four_bit_experts(model("gemma-4-26B-A4B"))
    if name in WITH_FILES:
        found = WITH_FILES[name]
    else:
        card = describe(CONFIGS[name], path=f"/srv/models/{name}")
        found = with_task(card, CONFIGS[name], SENTENCES.get(name, SentenceTransformer()))
        found = replace(found, weights=invented_weights(CONFIGS[name], found))
        found = replace(found, weights=(*found.weights, *_vision(name, found)))
    return replace(found, path=f"/srv/models/{name}")


def _four_bit_experts(whole: ModelCard) -> ModelCard:
    smaller = tuple(
        replace(one, size=int(one.size * 4.25 / 16)) if one.part in ("layers", "experts") else one
        for one in whole.weights
    )
    path = f"{whole.path}-AWQ"
    return replace(whole, path=path, quantization="awq", group_size=32, weights=smaller)


def _vision(name: str, found: ModelCard) -> tuple[Weights, ...]:
    size = next((gib for family, gib in VISION_GIB.items() if name.startswith(family)), 0)
    return (Weights("vision", "sharded", "BF16", int(size * GIB)),) if found.vision and size else ()


def derived(name: str) -> bool:
    return name.startswith(DERIVED)
