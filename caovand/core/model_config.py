"""A model's config.json, read as vLLM reads it; multimodal wrappers nest the text model's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caovand.core.inventory import LinearAttention, ModelCard, Weights
from caovand.core.shapes import weights_by_shape

LENGTHS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
VISION = ("vision_config", "audio_config", "visual", "vision_tower_cfg")
LAYER_NAMES = {
    "attention": "full_attention", "full_attention": "full_attention", "*": "full_attention",
    "sliding_attention": "sliding_attention", "chunked_attention": "sliding_attention",
    "linear_attention": "linear_attention", "mamba": "mamba", "mamba2": "mamba", "M": "mamba",
    "hybrid": "full_attention",
}  # fmt: skip


class BadConfig(Exception):
    """Why config.json does not describe a model."""


def describe(
    config: Mapping[str, Any], tokenizer: Mapping[str, Any] | None = None, path: str = ""
) -> ModelCard:
    """What the configuration alone says; nothing of weights."""
    text = _text(config)
    heads = _number(text, "num_attention_heads", "n_head") or 1
    hidden = _number(text, "hidden_size", "n_embd", "d_model")
    window = _number(text, "sliding_window")
    latent, rope = _number(text, "kv_lora_rank"), _number(text, "qk_rope_head_dim")
    quantised = _quantised(config, text)
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise BadConfig('it names no "architectures"')
    return ModelCard(
        path=path,
        architecture=str(architectures[0]),
        model_type=str(text.get("model_type") or config.get("model_type") or ""),
        layer_types=layer_types(text),
        max_model_len=context_limit(config, text, tokenizer or {}),
        mtp_layers=_number(text, "mtp_num_hidden_layers", "num_nextn_predict_layers"),
        hidden_size=hidden,
        intermediate_size=_number(text, "intermediate_size", "n_inner"),
        vocab_size=_number(text, "vocab_size"),
        heads=heads,
        kv_heads=_number(text, "num_key_value_heads", "multi_query_group_num") or heads,
        head_dim=_number(text, "head_dim") or hidden // heads,
        sliding_window=0 if text.get("use_sliding_window") is False else window,
        latent=latent + rope if latent else 0,
        linear=_linear(text),
        dtype=str(text.get("dtype") or text.get("torch_dtype") or _dtype(config)),
        quantization=str(quantised.get("quant_method") or "unknown").lower() if quantised else None,
        group_size=_number(quantised, "group_size", "q_group_size"),
        experts=_number(text, "num_experts", "num_local_experts", "n_routed_experts"),
        expert_size=_number(text, "moe_intermediate_size"),
        vision=any(config.get(name) for name in VISION),
    )


def invented_weights(config: Mapping[str, Any], card: ModelCard) -> tuple[Weights, ...]:
    """What vLLM makes up for this configuration with `--load-format dummy`."""
    text = _text(config)
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))
    return weights_by_shape(card, tied=bool(tied), gated=bool(text.get("attn_output_gate")))


def layer_types(text: Mapping[str, Any]) -> tuple[str, ...]:
    """One name a layer: attention over everything, over a window, or a recurrent state."""
    count = _number(text, "num_hidden_layers", "n_layer", "num_layers")
    listed = text.get("layer_types") or text.get("layers_block_type")
    if isinstance(listed, list):
        return tuple(LAYER_NAMES.get(str(name), str(name)) for name in listed)
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return tuple(LAYER_NAMES[mark] for mark in pattern if mark in LAYER_NAMES)
    every = _number(text, "full_attention_interval")
    if every and _number(text, "linear_num_value_heads"):
        kinds = ("full_attention", "linear_attention")
        return tuple(kinds[(layer + 1) % every != 0] for layer in range(count))
    return ("full_attention",) * count


def context_limit(
    config: Mapping[str, Any], text: Mapping[str, Any], tokenizer: Mapping[str, Any]
) -> int:
    """Tokens vLLM allows at most: the positions, scaled by RoPE, limited by the tokenizer."""
    limits = [_number(text, name) for name in LENGTHS]
    limit: float = min((n for n in limits if n), default=2048)
    tokens = tokenizer.get("model_max_length")
    if isinstance(tokens, (int, float)) and 0 < tokens < limit:
        limit = tokens
    if "gemma3" in str(config.get("model_type")):
        return int(limit)  # its positions are scaled already
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    nested = [part for part in rope.values() if isinstance(part, dict)] if rope else []
    factor = 1.0
    for part in nested or [rope]:
        kind = part.get("rope_type") or part.get("type")
        if kind in ("su", "longrope", "llama3"):
            continue
        factor = float(part.get("factor") or factor)
        if kind == "yarn":
            limit = _number(part, "original_max_position_embeddings") or limit
    return int(limit * factor)


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in ("text_config", "llm_config", "language_config"):
        nested = config.get(name)
        if isinstance(nested, dict) and nested:
            return nested
    thinker = config.get("thinker_config")
    return _text(thinker) if isinstance(thinker, dict) else config


def _number(table: Mapping[str, Any], *names: str) -> int:
    """The first of these keys that holds a whole number, else 0."""
    for name in names:
        value = table.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return 0


def _dtype(config: Mapping[str, Any]) -> str:
    return str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")


def _quantised(config: Mapping[str, Any], text: Mapping[str, Any]) -> Mapping[str, Any]:
    found = config.get("quantization_config") or text.get("quantization_config")
    return found if isinstance(found, dict) else {}


def _linear(text: Mapping[str, Any]) -> LinearAttention | None:
    if not _number(text, "linear_num_value_heads"):
        return None
    return LinearAttention(
        key_heads=_number(text, "linear_num_key_heads"),
        value_heads=_number(text, "linear_num_value_heads"),
        key_dim=_number(text, "linear_key_head_dim"),
        value_dim=_number(text, "linear_value_head_dim"),
        conv_kernel=_number(text, "linear_conv_kernel_dim"),
        state_dtype=str(text.get("mamba_ssm_dtype") or "auto"),
    )
