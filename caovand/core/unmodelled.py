"""Flags that change memory in ways that are not forecast: with them no verdict is given.

A forecast that ignored them would be trusted and wrong. What vLLM does with a flag that is absent
here is forecast, or takes no memory of a card that matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caovand.core.inventory import ModelCard
from caovand.core.memory import ONLINE
from caovand.core.plan import Plan

FLAGS = {
    "enable_lora": "adapters take memory of every card",
    "hf_overrides": "it changes the model that config.json describes",
    "mamba_cache_dtype": "it changes the size of the recurrent states",
    "mamba_block_size": "it changes how often recurrent states are kept",
    "kv_cache_dtype_skip_layers": "layers then keep caches of different sizes",
    "decode_context_parallel_size": "the cache is then spread over the ranks",
    "prefill_context_parallel_size": "the cache is then spread over the ranks",
    "enable_eplb": "experts are then kept more than once",
    "offload_group_size": "layers then come and go while the model runs",
}
OTHER_WEIGHTS = {"bitsandbytes", "gguf", "sharded_state", "tensorizer", "mistral"}
"""Load formats whose weights are not those that the folder's safetensors show."""
WITHOUT_WEIGHTS = ("ngram", "ngram_gpu", "suffix")


def unmodelled(plan: Plan, model: ModelCard) -> str:
    """What keeps a forecast from being made: a flag, or the model's states; empty for nothing."""
    for name, why in FLAGS.items():
        value = plan.value(name)
        if value is True or value not in (None, False, 1, "auto", {}, []):
            return _told(name, why)
    if model.hybrid and not (model.linear or model.mamba):
        return "config.json does not tell the shape of the recurrent states"
    if model.mamba and not model.hybrid:
        return "layers with attention and a recurrent state in one are not forecast"
    windows = model.hybrid or "sliding_attention" in model.layer_types
    if windows and plan.value("disable_hybrid_kv_cache_manager"):
        return _told("disable_hybrid_kv_cache_manager", "every layer then keeps the whole context")
    kind = plan.value("quantization")
    if kind and model.quantization is None and str(kind) not in ONLINE:
        return _told(f"quantization {kind}", "what it leaves of these weights is not known")
    if str(plan.value("load_format")) in OTHER_WEIGHTS:
        return _told(
            f"load_format {plan.value('load_format')}", "it loads other weights than safetensors"
        )
    if _drafts_with_a_model(plan.value("speculative_config")):
        return _told("speculative_config", "the drafting model takes memory of its own")
    return ""


def _drafts_with_a_model(config: Any) -> bool:
    if not isinstance(config, Mapping) or not config.get("model"):
        return False
    return config.get("method") not in WITHOUT_WEIGHTS


def _told(name: str, why: str) -> str:
    return f"--{_option(name)} is given, and {why}"


def _option(name: str) -> str:
    flag, space, value = name.partition(" ")
    return flag.replace("_", "-") + space + value
