"""Tables of sines and cosines that vLLM computes for rotary positions (rotary_embedding/).

A table has a row for every position that may be asked for, as wide as what is rotated of a head.
Layers that scale positions in one way share it, a drafting head's among them.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Any

from caovand.core.config_values import LARGEST, BadConfig, number, table, word

STRETCHED = ("linear", "ntk", "dynamic")
"""Kinds whose table reaches as far as the scaled positions."""
FROM_ORIGINAL = ("yarn", "deepseek_yarn", "deepseek_llama_scaling")
"""Kinds that scale the positions of the training, which the configuration gives apart."""
LONG = ("longrope", "su")
"""Kinds with one table for prompts as short as the training's, and one for all others."""
ROWS_OF_MROPE = 4
"""Positions of pictures go beyond those of a text: vLLM takes four times as many."""
FLOAT32 = ("gpt_oss", "deepseek")
"""Types whose tables are float32 in a model of half or bfloat16."""


def table_elements(text: Mapping[str, Any], head: int, global_head: int = 0) -> int:
    """Elements of the model's type that the tables take together."""
    positions = number(text, "max_position_embeddings")
    latent = number(text, "qk_rope_head_dim")
    tables: dict[tuple[float, int, str], float] = {}
    for kind, part in _parts(text):
        whole = global_head if kind == "full_attention" and global_head else head
        rows, width = _rows(part, text, positions), latent or _rotated(part, text, whole)
        tables[rows, width, repr(sorted(part.items(), key=repr))] = rows * width
    wide = word(text, "model_type").startswith(FLOAT32)
    return int(sum(tables.values())) * (2 if wide else 1)


def factor(rope: Mapping[str, Any]) -> float:
    """By how much positions are stretched; 0 where nothing is said."""
    value = rope.get("factor")
    if value is None:
        return 0.0
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 < value <= LARGEST or not math.isfinite(value):
        raise BadConfig(f'the "factor" of its RoPE is {reprlib.repr(value)}, no number above 0')
    return float(value)


def scalings(text: Mapping[str, Any]) -> Mapping[str, Any]:
    """How positions are scaled: one table, or one for each type of layer."""
    return table(text, "rope_parameters") or table(text, "rope_scaling")


def _parts(text: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Each type of layer and how it scales positions; no name where all do the same."""
    given = scalings(text)
    by_layer = [(name, part) for name, part in given.items() if isinstance(part, Mapping)]
    if by_layer:
        return by_layer
    if text.get("rope_local_base_freq") is not None:  # Gemma 3 as it was published
        return [("full_attention", given), ("sliding_attention", {})]
    return [("", given)]


def _rows(rope: Mapping[str, Any], text: Mapping[str, Any], positions: int) -> float:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    name = "original_max_position_embeddings"
    original = number(rope, name) or number(text, name)
    if kind in STRETCHED and "alpha" not in rope:
        return positions * (factor(rope) or 1.0)
    if kind in LONG:
        return positions + original
    rows = float(positions)
    if kind in FROM_ORIGINAL:
        rows = (original or positions) * (factor(rope) or 1.0)
    return rows * (ROWS_OF_MROPE if "mrope_section" in rope else 1)


def _rotated(rope: Mapping[str, Any], text: Mapping[str, Any], head: int) -> int:
    """Elements of a head that are rotated; Gemma 4's table has those too that are not."""
    share = rope.get("partial_rotary_factor") or text.get("partial_rotary_factor")
    if rope.get("rope_type") == "proportional" or not isinstance(share, (int, float)):
        return head
    return int(head * share) if 0 < share <= 1 else head
