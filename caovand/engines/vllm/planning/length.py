"""How long a context vLLM takes for a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caovand.core.facts.inventory import ModelCard

ALLOWING = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
"""The variable by which vLLM takes a longer context than the model was made for."""
CHANGING = ("hf_overrides", "rope_scaling")
"""Flags that may change the model's limit in ways that only vLLM knows."""


def beyond_limit(
    model: ModelCard, context: int, settings: Mapping[str, Any], env: Mapping[str, Any]
) -> bool:
    """Whether vLLM refuses this context as longer than the model's own limit."""
    if not model.limit_known or not model.max_model_len or context <= model.max_model_len:
        return False
    allowed = str(env.get(ALLOWING, "0")).strip().lower() in ("1", "true")
    return not allowed and not any(settings.get(name) for name in CHANGING)
