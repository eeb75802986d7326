"""Models of sizes that no forecast was made after, without weights: vLLM invents them.

Shapes of published families with their own head counts, layers and vocabularies, in the order of
their worth: a run that is cut short has the first ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.boxes.models import GPTQ, QWEN_27B
from tests.cards.conftest import TOKENIZER, model
from tests.cards.vocabulary import write_vocabulary

CONTEXT = 32768
TOKENIZER_CONFIG = "tokenizer_config.json"
DENSE = {
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False, "attention_bias": False, "dtype": "bfloat16", "use_cache": True,
    "eos_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
HYBRID = {
    **DENSE, "head_dim": 256, "full_attention_interval": 4, "attn_output_gate": True,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_num_key_heads": 16, "mamba_ssm_dtype": "float32", "vocab_size": 248320,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25
    },
}  # fmt: skip
LLAMA = {**DENSE, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
QWEN = {**DENSE, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}


@dataclass(frozen=True)
class Shape:
    """A model, and what is set of its plan; `cards` are how many it is split over."""

    config: Mapping[str, Any]
    args: tuple[str, ...] = ()
    policy: Mapping[str, Any] = field(default_factory=dict)
    cards: int = 1

    def folder(self, parent: Path) -> Path:
        """A folder with this configuration and a tokenizer."""
        made, tiny = parent / "model", model("hybrid")
        made.mkdir()
        (made / "config.json").write_text(json.dumps(layers(self.config)))
        write_vocabulary(tiny / TOKENIZER, made / TOKENIZER, self.config["vocab_size"])
        tokenizer = json.loads((tiny / TOKENIZER_CONFIG).read_text())
        # vLLM takes the smaller of the two limits.
        tokenizer["model_max_length"] = self.config["max_position_embeddings"]
        (made / TOKENIZER_CONFIG).write_text(json.dumps(tokenizer))
        return made


def layers(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with the kind of each layer where they differ."""
    if every := config.get("full_attention_interval"):
        kinds = ["linear_attention"] * (every - 1) + ["full_attention"]
    elif every := config.get("sliding_window_pattern"):
        kinds = ["sliding_attention"] * (every - 1) + ["full_attention"]
    else:
        return dict(config)
    count = config["num_hidden_layers"]
    return {**config, "layer_types": (kinds * count)[:count]}


HYBRID_MOE = {
    **HYBRID, "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text",
    "hidden_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 16,
    "num_key_value_heads": 2, "linear_num_value_heads": 32, "num_experts": 128,
    "num_experts_per_tok": 8, "moe_intermediate_size": 512, "intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "mtp_num_hidden_layers": 1,
}  # fmt: skip
HYBRID_DENSE = {
    **HYBRID, "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text",
    "hidden_size": 2560, "intermediate_size": 9216, "num_hidden_layers": 20,
    "num_attention_heads": 16, "num_key_value_heads": 4, "linear_num_value_heads": 32,
    "mtp_num_hidden_layers": 1,
}  # fmt: skip
MOE = {
    **DENSE, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
    "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "num_experts": 96, "num_experts_per_tok": 8, "norm_topk_prob": True, "vocab_size": 151936,
    "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
WHOLE_27B = Shape(
    {**HYBRID, **QWEN_27B, "architectures": ["Qwen3_5ForCausalLM"],
     "quantization_config": {
         **GPTQ, "sym": True, "lm_head": False, "dynamic": {"-:.*in_proj_ba": {}, "-:.*mtp": {}},
     }},
    ("--kv-cache-dtype", "int4_per_token_head", "--attention-backend", "TRITON_ATTN"),
    {"mtp": 4, "max_num_seqs": 4},
)  # fmt: skip
"""The text model of Qwen3.6-27B in 4 bits, as published: lm_head, MTP layer and gates in 16."""
SHAPES: Mapping[str, Shape] = {
    "hybrid_moe_mtp2": Shape(HYBRID_MOE, policy={"mtp": 2}),
    "moe_96_experts": Shape(MOE),
    "dense_int4_cache": Shape(
        {**QWEN, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 22,
         "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128,
         "vocab_size": 151936},
        ("--kv-cache-dtype", "int4_per_token_head"),
    ),
    "hybrid_int8_cache": Shape(HYBRID_DENSE, ("--kv-cache-dtype", "int8_per_token_head")),
    "dense_few_heads": Shape(
        {**LLAMA, "hidden_size": 1536, "intermediate_size": 4608, "num_hidden_layers": 26,
         "num_attention_heads": 12, "num_key_value_heads": 2, "head_dim": 128,
         "vocab_size": 128256, "tie_word_embeddings": True},
    ),
    "dense_every_head": Shape(
        {**LLAMA, "hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 14,
         "num_attention_heads": 40, "num_key_value_heads": 40, "head_dim": 128,
         "vocab_size": 32000},
    ),
    "dense_fp8_cache": Shape(
        {**QWEN, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 18,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
         "vocab_size": 151936},
        ("--kv-cache-dtype", "fp8"),
    ),
    "hybrid_mtp3_gmu60": Shape(
        HYBRID_DENSE, policy={"mtp": 3, "gpu_memory_utilization": 0.6, "max_num_seqs": 40}
    ),
    "windows": Shape(
        {**DENSE, "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text",
         "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 24,
         "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
         "sliding_window": 1024, "sliding_window_pattern": 6, "vocab_size": 262208,
         "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True,
         "query_pre_attn_scalar": 256, "rope_theta": 1e6, "rope_local_base_freq": 1e4},
    ),
    "latent": Shape(
        {**DENSE, "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2",
         "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
         "num_hidden_layers": 14, "num_attention_heads": 16, "num_key_value_heads": 16,
         "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
         "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64,
         "num_experts_per_tok": 6, "n_shared_experts": 2, "first_k_dense_replace": 1,
         "moe_layer_freq": 1, "vocab_size": 102400, "topk_method": "greedy", "n_group": 1,
         "topk_group": 1, "routed_scaling_factor": 1.0, "scoring_func": "softmax",
         "norm_topk_prob": False},
    ),
    "hybrid_27b_4_bits": WHOLE_27B,
    "two_cards_hybrid_moe": Shape(HYBRID_MOE, policy={"mtp": 2}, cards=2),
    "two_cards_moe_fp8_cache": Shape(MOE, ("--kv-cache-dtype", "fp8"), cards=2),
}  # fmt: skip
