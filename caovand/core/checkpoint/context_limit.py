"""The longest context that a model's configuration allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caovand.core.checkpoint.rope import scaling_factor, scaling_tables
from caovand.core.checkpoint.values import MAX_VALUE, BadConfig, first_count, text_value

LENGTHS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
    "max_sequence_length", "max_seq_length", "seq_len", "max_target_positions",
)  # fmt: skip
OFFSET, USUAL_PADDING = ("roberta", "camembert"), 1
"""Model types whose positions begin after the padding token: 512 of a table of 514 are usable."""


def context_limit(
    config: Mapping[str, Any], text: Mapping[str, Any], tokenizer: Mapping[str, Any]
) -> int:
    """Context limit that engines enforce: RoPE-scaled positions.

    The tokenizer's own limit counts only for absolute positions, which encoders have.
    """
    limits = [first_count(text, name) for name in LENGTHS]
    limit: float = min((n for n in limits if n), default=2048)
    kind, tokens = text_value(config, "model_type"), tokenizer.get("model_max_length")
    bert = "absolute" if "bert" in kind else ""
    absolute = (text_value(config, "position_embedding_type") or bert) == "absolute"
    if absolute and any(mark in kind for mark in OFFSET):
        configured = config.get("pad_token_id") is not None
        padding = first_count(config, "pad_token_id") if configured else USUAL_PADDING
        limit = max(limit - padding - 1, 1)
    if absolute and isinstance(tokens, (int, float)) and tokens is not True and 1 <= tokens < limit:
        limit = int(tokens)
    if "gemma3" in kind:
        return int(limit)  # the positions are already scaled
    rope = scaling_tables(text)
    nested = [part for part in rope.values() if isinstance(part, Mapping)]
    stretch = 1.0
    for part in nested or [rope]:
        scaling = part.get("rope_type") or part.get("type")
        if scaling in ("su", "longrope", "llama3"):
            continue
        stretch = scaling_factor(part) or stretch
        if scaling == "yarn":
            limit = first_count(part, "original_max_position_embeddings") or limit
    if not 1 <= limit * stretch <= MAX_VALUE:
        raise BadConfig(f"its context, {limit:.0f} positions, is scaled by {stretch:g}")
    return int(limit * stretch)
