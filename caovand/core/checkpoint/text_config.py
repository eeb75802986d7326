"""The text model's section of config.json, completed with its family's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caovand.core.checkpoint.values import table_value, text_value

GEMMA = {
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "sliding_window": 4096, "tie_word_embeddings": True,
}  # fmt: skip
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma2": {
        **GEMMA, "max_position_embeddings": 8192, "vocab_size": 256000,
        "sliding_window_pattern": 2,
    },
    "gemma3_text": {
        **GEMMA, "max_position_embeddings": 131072, "vocab_size": 262208,
        "sliding_window_pattern": 6,
    },
    "gemma4_text": {
        **GEMMA, "max_position_embeddings": 131072, "vocab_size": 262144,
        "sliding_window_pattern": 6, "sliding_window": 512, "global_head_dim": 512,
    },
}  # fmt: skip
"""Transformers' defaults by model type: Gemma's published configurations omit them."""


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The text model's section, with its family's defaults for missing keys."""
    text = _text_as_written(config)
    kind = text_value(text, "model_type") or text_value(config, "model_type")
    defaults = DEFAULTS.get(kind) or DEFAULTS.get(f"{kind}_text") or {}
    return {**defaults, **{name: value for name, value in text.items() if value is not None}}


def _text_as_written(config: Mapping[str, Any]) -> Mapping[str, Any]:
    while True:
        for name in ("text_config", "llm_config", "language_config"):
            if table_value(config, name):
                return table_value(config, name)
        thinker = table_value(config, "thinker_config")
        if not thinker:
            return config
        config = thinker
