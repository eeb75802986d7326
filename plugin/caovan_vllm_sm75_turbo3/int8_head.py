"""Plug an int8 lm_head into vLLM.

vLLM replaces the class `ParallelLMHead` by name when one is instantiated. The replacement is a
subclass whose weights become int8 once they are loaded. A drafter that shares the target's head
shares the int8 weights.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping

HEAD = "vllm.model_executor.layers.vocab_parallel_embedding"
APPLY = ("self", "layer", "x", "bias")
PROCESS = ("self", "layer")
TIE = ("self", "embed_tokens")


def refusal() -> str | None:
    """The first difference of the installed vLLM from the one that this module is for, or None."""
    from vllm.model_executor.layers import logits_processor, vocab_parallel_embedding

    head = getattr(vocab_parallel_embedding, "ParallelLMHead", None)
    method = getattr(vocab_parallel_embedding, "UnquantizedEmbeddingMethod", None)
    if head is None or method is None:
        return f"{HEAD} has no {'ParallelLMHead' if head is None else 'UnquantizedEmbeddingMethod'}"
    for owner, name, known in (
        (method, "apply", APPLY),
        (method, "process_weights_after_loading", PROCESS),
        (head, "tie_weights", TIE),
    ):
        taken = tuple(inspect.signature(getattr(owner, name, lambda: None)).parameters)
        if taken != known:
            return f"{owner.__name__}.{name} accepts {taken}, but this plugin expects {known}"
    if "lm_head.quant_method.apply(" not in inspect.getsource(logits_processor.LogitsProcessor):
        return "LogitsProcessor does not multiply by lm_head.quant_method.apply"
    return None


def offer() -> str | None:
    """Let an lm_head become int8 if requested; return why not, or None on success.

    Each head decides for itself, because vLLM's configuration and the worker's card are not known
    yet.
    """
    from vllm.model_executor.custom_op import PluggableLayer, op_registry_oot

    if reason := refusal():
        return reason
    if owner := op_registry_oot.get("ParallelLMHead"):
        ours = owner.__module__.startswith(__package__)
        return None if ours else f"ParallelLMHead is already replaced by {owner}"
    from . import head_layer

    PluggableLayer.register_oot(name="ParallelLMHead")(head_layer.Sm75LMHead)
    return None


def wanted(vllm_config) -> str:
    """The setting in this configuration. Raises ValueError for an unknown word."""
    from . import rounding

    config = getattr(vllm_config, "additional_config", None)
    return rounding.lm_head_wanted(os.environ, config if isinstance(config, Mapping) else {})


def draft_vocabulary(vllm_config) -> int:
    """Number of tokens that this configuration drafts over. Raises ValueError for an invalid
    number."""
    from . import rounding

    config = getattr(vllm_config, "additional_config", None)
    return rounding.draft_vocabulary(os.environ, config if isinstance(config, Mapping) else {})
