"""Count MTP layers from the configuration, or from the model type where vLLM needs no key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caovand.core.checkpoint.values import first_count, table_value, text_value

KEYS = ("mtp_num_hidden_layers", "num_nextn_predict_layers")
KEYLESS_TYPES = frozenset({
    "qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "exaone_moe",
    "exaone4_5", "exaone4_5_text", "longcat_flash", "step3p5", "step3p7", "dots3_note", "hy_v4",
})  # fmt: skip
"""Types that vLLM treats as having one MTP layer if config.json gives no number."""
ONE_LAYER_TYPES = frozenset({
    "MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM", "MiMoV2OmniForCausalLM",
})  # fmt: skip
"""Architectures for which vLLM runs only the first MTP layer, whatever number config.json gives."""
MINIMAX = "minimax_m3"
"""M2 has MiniMax's key too, but vLLM does not draft with it."""


def mtp_layers(config: Mapping[str, Any], text: Mapping[str, Any], architecture: str) -> int:
    """Number of MTP layers in the configuration; the weights may lack them."""
    if architecture in ONE_LAYER_TYPES:
        return 1
    types = {text_value(text, "model_type"), text_value(config, "model_type")}
    if any(kind.startswith(MINIMAX) for kind in types):
        return first_count(text, "num_mtp_modules") if "num_mtp_modules" in text else 1
    counted = first_count(text, *KEYS) or first_count(table_value(config, "mtp_config"), *KEYS)
    named = any(text.get(key) is not None for key in KEYS)
    return counted or (0 if named or types.isdisjoint(KEYLESS_TYPES) else 1)
