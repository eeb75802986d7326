"""How vLLM spells its flags, and how it interprets their values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from caovand.core.facts.inventory import ModelCard

MAX_COUNT = 1 << 53  # above it floats, in which memory is counted, are no longer exact
PARTS_OF_SPECULATION = ("spec_method", "spec_model", "spec_tokens")
"""Flags of newer engines that replace parts of `--speculative-config`."""
SPECULATION = ("speculative_config", *PARTS_OF_SPECULATION)
"""All flags that configure speculation."""
RANKS_BY_YES: Mapping[str, Any] = {
    "architectures": ["Qwen3ForSequenceClassification"],
    "classifier_from_token": ["no", "yes"],
    "is_original_qwen3_reranker": True,
}
"""`--hf-overrides` for a Qwen3-Reranker as published, by vLLM's documentation."""


def whole_number(value: Any) -> int | None:
    """A count as vLLM reads it: 8192, "8.5k" (thousands) or "8K" (of 1024); None if it is not one.

    Neither is a fraction of 1024s, which vLLM refuses, nor a number too large to count memory by.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < MAX_COUNT else None
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,12})?)([kmgt])|(\d{1,12})([KMGT])", str(value))
    if not match:
        return None
    number, unit = [part for part in match.groups() if part is not None]
    power = "kmgt".index(unit.lower()) + 1
    if unit.islower():
        return int(float(number) * 10 ** (3 * power))
    return int(number) << 10 * power


def count(value: Any) -> int | None:
    """A count of one or more; None for -1, "auto" and the like, which leave the choice to vLLM."""
    number = whole_number(value)
    return number if number is not None and number > 0 else None


def is_left_to_vllm(context: Any) -> bool:
    """Whether --max-model-len lets vLLM choose the longest context that fits."""
    return context == -1 or (isinstance(context, str) and context.strip().lower() == "auto")


def option(name: str) -> str:
    """A flag name as written on a command line."""
    return "--" + name.replace("_", "-")


ALLOWING = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
"""The variable that lets vLLM exceed the context the model was trained for."""
CHANGING = ("hf_overrides", "rope_scaling")
"""Flags that may change the model's limit in ways that only vLLM can compute."""


def beyond_limit(
    model: ModelCard, context: int, settings: Mapping[str, Any], env: Mapping[str, Any]
) -> bool:
    """Whether vLLM refuses this context as longer than the model's own limit."""
    if not model.limit_known or not model.max_model_len or context <= model.max_model_len:
        return False
    allowed = str(env.get(ALLOWING, "0")).strip().lower() in ("1", "true")
    return not allowed and not any(settings.get(name) for name in CHANGING)


PLUGINS, PLUGIN = "VLLM_PLUGINS", "caovan_vllm_sm75_turbo3"
"""The variable that lists the plugins to load (all, if it is not set), and the name of ours."""
MARLIN_INPUT = "VLLM_MARLIN_INPUT_DTYPE"
LM_HEAD = "CAOVAN_LM_HEAD"
"""The type that the plugin gives the lm_head: off (the model's own), int8."""
DRAFTER, DRAFT_VOCABULARY = "CAOVAN_DRAFTER", "CAOVAN_DRAFT_VOCABULARY"
"""The type of the MTP layer, and how many tokens are drafted (0: all)."""
INT8 = "int8"
