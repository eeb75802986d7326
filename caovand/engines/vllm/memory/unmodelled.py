"""Flags that change memory in ways that are not forecast: with them no verdict is given.

A forecast that ignored them would be trusted and wrong, and so would a context that was chosen by
it: that is left to vLLM. What vLLM does with a flag that is absent here is forecast, or takes no
memory of a card that matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caovand.core.facts.inventory import Inventory, ModelCard
from caovand.core.plan import looks_up
from caovand.engines.vllm.memory.estimate import ONLINE
from caovand.engines.vllm.memory.kv_cache import STATE, pages
from caovand.engines.vllm.memory.load import dealt
from caovand.engines.vllm.memory.stages import ranges
from caovand.engines.vllm.planning.flag_table import UNFORESEEN
from caovand.engines.vllm.planning.ranks import replicas, spans_machines
from caovand.engines.vllm.planning.spelling import option, whole_number

OTHER_WEIGHTS = {"bitsandbytes", "gguf", "sharded_state", "tensorizer", "mistral"}
"""Load formats whose weights are not those that the folder's safetensors show."""


def unmodelled(given: Mapping[str, Any], model: ModelCard) -> str:
    """What keeps a forecast from being made: a flag, or the model's states; empty for nothing."""
    why = weights_unknown(given, model)
    if why:
        return why
    for name, reason in UNFORESEEN.items():
        if _is_set(given.get(name)):
            return _told(name, reason)
    if not (model.head_dim or model.latent or set(model.layer_types) <= {*STATE, "mlp"}):
        return "config.json does not tell the attention heads"
    if model.hybrid and not (model.linear or model.mamba):
        return "config.json does not tell the shape of the recurrent states"
    if model.mamba and not model.hybrid:
        return "layers with attention and a recurrent state in one are not forecast"
    windows = model.hybrid or "sliding_attention" in model.layer_types
    if windows and given.get("disable_hybrid_kv_cache_manager"):
        return _told("disable_hybrid_kv_cache_manager", "every layer then keeps the whole context")
    if _drafts_with_a_model(given.get("speculative_config")):
        return _told("speculative_config", "the drafting model takes memory of its own")
    return ""


def weights_unknown(given: Mapping[str, Any], model: ModelCard) -> str:
    """Why it is not known what a rank will hold of the weights; empty where it is."""
    if _is_set(given.get("hf_overrides")):
        return _told("hf_overrides", "it changes the model that config.json describes")
    kind, form = given.get("quantization"), given.get("load_format")
    if kind and model.quantization is None and str(kind) not in ONLINE:
        return _told(f"quantization {kind}", "what it leaves of these weights is not known")
    if str(form) in OTHER_WEIGHTS:
        return _told(f"load_format {form}", "it loads other weights than safetensors")
    if replicas(given) > 1 and model.experts:
        return _told("data_parallel_size", "experts are then spread over the replicas")
    if replicas(given) > 1 and spans_machines(given):
        return _told("data_parallel_size", "replicas may be on other machines")
    return ""


def stages_unknown(values: Mapping[str, Any], env: Mapping[str, Any], inventory: Inventory) -> str:
    """Why it is not known what the pipeline stages hold; empty where it is, or without stages."""
    model, name = inventory.model, "pipeline_parallel_size"
    count = whole_number(values.get(name)) or 1
    if count < 2:
        return ""
    if spans_machines(values) and not inventory.others:
        return _told(name, "the cards of the other machines are not known here")
    if model.kv_shared:
        return _told(name, "layers that read the caches of others may be on another stage")
    layers = dealt(values, env, len(model.layer_types))
    if not layers:
        return _told(f"{name} {count}", "its layers cannot be dealt like that")
    if not all(pages(model, 0, start, end) for start, end in ranges(layers)):
        return _told(f"{name} {count}", "a stage would have no layer with a cache")
    return ""


def _is_set(value: Any) -> bool:
    return value is True or value not in (None, False, 1, "auto", {}, [])


def _drafts_with_a_model(config: Any) -> bool:
    if not isinstance(config, Mapping) or not config.get("model"):
        return False
    return not looks_up(config.get("method"))


def _told(name: str, why: str) -> str:
    flag, space, value = name.partition(" ")
    return f"{option(flag)}{space}{value} is set, and {why}"
