"""The MTP head of Qwen3.5 and related models: int8 layers, and drafts over part of the vocabulary.

vLLM has no extension point for such a model, so three of its methods are wrapped once the target's
lm_head is int8: importing the model earlier would cost every process seconds.

vLLM creates and loads a head for the drafter, then replaces it with the target's. Here the drafter
has the target's from the start: for a 27B model, the temporary head would need 3.5 GiB that are
never needed again.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import weakref
from collections.abc import Mapping

MODEL = "vllm.model_executor.models.qwen3_5_mtp"
LOAD = ("self", "weights")
LOGITS = ("self", "hidden_states", "spec_step_idx")


_target: list[weakref.ref] = []  # the head that most recently became int8
_making: list[bool] = []  # while a drafter is being created


def finished(head, method: str | None) -> None:
    """The target's `head` is int8; `method` drafts for it."""
    from .replacements import logger

    _target[:] = [weakref.ref(head)]
    if method != "mtp":
        return
    try:
        importlib.import_module(MODEL)
        reason = offer()
    except Exception as error:  # even a changed vLLM must start
        reason = f"{type(error).__name__}: {error}"
    if reason:
        logger.warning("caovan: the drafter stays vLLM's: %s", reason)


def target_of(vocabulary: int, hidden: int):
    """The target's head if a drafter with a head of this size is being created; else None."""
    if not _making:
        _target.clear()  # of an earlier model
    head = _target[0]() if _target else None
    same = head is not None and (head.num_embeddings, head.embedding_dim) == (vocabulary, hidden)
    return head if same else None


def offer() -> str | None:
    """Wrap the model's class once vLLM has imported it; return why not, or None."""
    module = sys.modules.get(MODEL)
    model = getattr(module, "Qwen3_5MTP", None)
    if module is None or getattr(model, "caovan", False):
        return None
    if model is None:
        return f"{MODEL} has no Qwen3_5MTP"
    for name, known in (("load_weights", LOAD), ("compute_logits", LOGITS)):
        taken = tuple(inspect.signature(getattr(model, name, lambda: None)).parameters)
        if taken != known:
            return f"Qwen3_5MTP.{name} accepts {taken}, but this plugin expects {known}"
    model.__init__ = _init(model.__init__)
    model.load_weights = _load_weights(model.load_weights)
    model.compute_logits = _compute_logits(model.compute_logits)
    model.caovan = True
    return None


def _init(in_tree):
    @functools.wraps(in_tree)
    def __init__(self, *args, **kwargs):
        _making.append(True)
        try:
            in_tree(self, *args, **kwargs)
        finally:
            _making.pop()

    return __init__


def _load_weights(in_tree):
    @functools.wraps(in_tree)
    def load_weights(self, weights):
        loaded = in_tree(self, weights)
        quantize_layers(self)
        return loaded

    return load_weights


def _compute_logits(in_tree):
    from .head_layer import Int8LmHeadMethod

    @functools.wraps(in_tree)
    def compute_logits(self, hidden_states, spec_step_idx=0):
        method = getattr(self.lm_head, "quant_method", None)
        if not isinstance(method, Int8LmHeadMethod):
            return in_tree(self, hidden_states, spec_step_idx)
        method.drafting = True
        try:
            return in_tree(self, hidden_states, spec_step_idx)
        finally:
            method.drafting = False

    return compute_logits


def quantize_layers(model) -> None:
    """Mark the linear layers of a loaded drafter to become int8 when vLLM finishes them."""
    from vllm.model_executor.layers.linear import ColumnParallelLinear, RowParallelLinear

    from . import head_layer, library, rounding
    from .replacements import logger

    config = getattr(model.vllm_config, "additional_config", None)
    try:
        wanted = rounding.drafter_wanted(os.environ, config if isinstance(config, Mapping) else {})
        if wanted == "off":
            return
        # vLLM keys compiled code by its configuration, not by variables, and would reuse code for
        # 16 bits.
        settings = dict(config) if isinstance(config, Mapping) else {}
        model.vllm_config.additional_config = {**settings, "caovan_drafter": wanted}
        reasons = set()
        for layer in model.model.modules():
            if not isinstance(layer, (ColumnParallelLinear, RowParallelLinear)):
                continue
            weight = getattr(layer, "weight", None)
            method = type(layer.quant_method).__name__
            if weight is None or weight.dim() != 2:
                reasons.add(f"its weights are quantised already ({method})")
                continue
            reason = rounding.lm_head_refusal(
                rounding.LmHeadFacts(
                    dtype=str(weight.dtype).removeprefix("torch."),
                    head_dtype=str(weight.dtype).removeprefix("torch."),
                    method=method,
                    vocabulary=weight.shape[0],
                    hidden=weight.shape[1],
                    adapters=model.vllm_config.lora_config is not None,
                    load_format=str(model.vllm_config.load_config.load_format),
                    **head_layer.card_facts(weight.device),
                )
            )
            if reason:
                reasons.add(reason)
            else:
                layer.quant_method = head_layer.Int8DrafterMethod(layer.quant_method)
        for reason in sorted(reasons):
            logger.warning("caovan: the drafter stays in 16 bits: %s", reason)
    except Exception as error:  # even a changed vLLM must start
        reason = library.reason_of(error)
        logger.warning("caovan: the drafter stays in 16 bits: %s", reason)
