"""Size the sine and cosine tables of rotary embeddings (vLLM's rotary_embedding/).

A table has a row for every position, as wide as the rotated part of a head. Layers with the same
scaling share one table; this includes a draft head's layers.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from caovand.core.checkpoint.values import (
    MAX_VALUE,
    BadConfig,
    first_count,
    table_value,
    text_value,
)
from caovand.core.document import is_number

STRETCHED = ("linear", "ntk", "dynamic")
"""Kinds whose table covers all scaled positions."""
FROM_ORIGINAL = ("yarn", "deepseek_yarn", "deepseek_llama_scaling")
"""Kinds that scale the original training length, which has its own key."""
LONG_ROPE_TYPES = ("longrope", "su")
"""Kinds with one table for prompts within the training length and another for longer ones."""
MROPE_ROWS = 4
"""Image positions exceed text positions: vLLM's table has four times as many rows."""
FLOAT32 = ("gpt_oss", "deepseek")
"""Model types whose tables are float32 even in a float16 or bfloat16 model."""


def table_elements(text: Mapping[str, Any], head: int, global_head: int = 0) -> int:
    """Size of all tables, in elements of the model's dtype."""
    positions = first_count(text, "max_position_embeddings")
    latent = first_count(text, "qk_rope_head_dim")
    tables: dict[tuple[float, int, str], float] = {}
    for kind, part in _parts(text):
        whole = global_head if kind == "full_attention" and global_head else head
        rows, width = _rows(part, text, positions), latent or _rotary_width(part, text, whole)
        tables[rows, width, repr(sorted(part.items(), key=repr))] = rows * width
    wide = text_value(text, "model_type").startswith(FLOAT32)
    return int(sum(tables.values())) * (2 if wide else 1)


def scaling_factor(rope: Mapping[str, Any]) -> float:
    """RoPE scaling factor; 0 without scaling."""
    value = rope.get("factor")
    if value is None:
        return 0.0
    if not is_number(value, 0, MAX_VALUE) or not value:
        raise BadConfig(f'the "factor" of its RoPE is {reprlib.repr(value)}, not a number above 0')
    return float(value)


def scaling_tables(text: Mapping[str, Any]) -> Mapping[str, Any]:
    """The scaling configuration: one table, or one per layer type."""
    return table_value(text, "rope_parameters") or table_value(text, "rope_scaling")


def _parts(text: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Each layer type with its RoPE scaling; the name is empty if all types share one."""
    tables = scaling_tables(text)
    by_layer = [(name, part) for name, part in tables.items() if isinstance(part, Mapping)]
    if by_layer:
        return by_layer
    if text.get("rope_local_base_freq") is not None:  # Gemma 3 as published
        return [("full_attention", tables), ("sliding_attention", {})]
    return [("", tables)]


def _rows(rope: Mapping[str, Any], text: Mapping[str, Any], positions: int) -> float:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    name = "original_max_position_embeddings"
    original = first_count(rope, name) or first_count(text, name)
    if kind in STRETCHED and "alpha" not in rope:
        return positions * (scaling_factor(rope) or 1.0)
    if kind in LONG_ROPE_TYPES:
        return positions + original
    rows = float(positions)
    if kind in FROM_ORIGINAL:
        rows = (original or positions) * (scaling_factor(rope) or 1.0)
    return rows * (MROPE_ROWS if "mrope_section" in rope else 1)


def _rotary_width(rope: Mapping[str, Any], text: Mapping[str, Any], head: int) -> int:
    """Rotated elements of a head; for Gemma 4, the full head, as in its table."""
    share = rope.get("partial_rotary_factor") or text.get("partial_rotary_factor")
    if rope.get("rope_type") == "proportional" or not isinstance(share, (int, float)):
        return head
    return int(head * share) if 0 < share <= 1 else head
