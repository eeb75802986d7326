"""vLLM's lm_head, and a drafter's layers, with int8 weights and one scale per row.

The int8 weights are made once the 16-bit ones are loaded, which are then freed. If the kernel fails
later, torch multiplies by the int8 weights instead.
"""

from __future__ import annotations

import torch
import vllm.envs
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
)

from . import drafter, int8_head, launch, library, lm_head, ops, rounding  # noqa: F401  (ops registers)
from .replacements import card_facts, logger

Tensor = torch.Tensor


def facts(layer: ParallelLMHead, vllm_config) -> rounding.LmHeadFacts:
    """Facts about a constructed head and its machine."""
    model = vllm_config.model_config
    text = getattr(model, "hf_text_config", None)
    # vLLM 0.21 uses a separate dtype for the logits of pooling models only.
    head_dtype = model.head_dtype if model.runner_type != "pooling" else "of pooling"
    return rounding.LmHeadFacts(
        dtype=str(model.dtype).removeprefix("torch."),
        head_dtype=str(head_dtype).removeprefix("torch."),
        method=type(layer.quant_method).__name__,
        vocabulary=layer.num_embeddings_per_partition,
        hidden=layer.embedding_dim,
        tied=bool(getattr(text, "tie_word_embeddings", False)),
        adapters=vllm_config.lora_config is not None,
        draft_copy=getattr(vllm_config.speculative_config, "draft_lm_head_quantization", None),
        batch_invariant=bool(vllm.envs.VLLM_BATCH_INVARIANT),
        load_format=str(vllm_config.load_config.load_format),
        **card_facts(layer.weight.device),
    )


class Int8Method:
    """Multiplies by int8 weights; `in_tree` is vLLM's method for 16 bits.

    Drafters are compiled, so `apply` may only contain operators.
    """

    supports_pre_processed_weights = False
    what = "lm_head"

    def __init__(self, in_tree) -> None:
        super().__init__()
        self.in_tree = in_tree

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        if layer.weight.dtype is torch.int8:
            return
        try:
            launch.prepare(layer.weight.device)
            rows, scale = lm_head.quantise(layer.weight.data)
        except Exception as error:
            layer.quant_method = self.in_tree
            logger.warning(
                "caovan: the %s stays in 16 bits: %s", self.what, library.reason_of(error)
            )
            self.in_tree.process_weights_after_loading(layer)
            return
        layer.weight = torch.nn.Parameter(rows, requires_grad=False)
        # Not a parameter: --load-format dummy would fill that of a drafter which shares it.
        layer.register_buffer("weight_scale", scale, persistent=False)
        shape = tuple(rows.shape)
        logger.info_once("caovan: the %s is int8 on the SM75 kernel (%d x %d)", self.what, *shape)
        self.finished(layer)

    def finished(self, layer: torch.nn.Module) -> None:
        """Called once the layer's weights are int8."""

    def apply(self, layer: torch.nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        out = torch.ops.caovan.lm_head(rows, layer.weight, layer.weight_scale)
        out = out.view(*x.shape[:-1], layer.weight.shape[0])
        return out if bias is None else out + bias


class Int8LmHeadMethod(Int8Method, UnquantizedEmbeddingMethod):
    """The lm_head's method; while `drafting`, it computes logits of part of the vocabulary, and
    -inf elsewhere."""

    drafting = False
    draft_vocabulary = 0  # ids from 0 up; 0 for all
    drafts_by: str | None = None  # vLLM's name for the method

    def finished(self, layer: torch.nn.Module) -> None:
        drafter.finished(layer, self.drafts_by)

    def apply(self, layer: torch.nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if not self.drafting or not self.draft_vocabulary:
            return super().apply(layer, x, bias)
        rows = x.reshape(-1, x.shape[-1])
        out = x.new_full((rows.shape[0], layer.weight.shape[0]), -torch.inf)
        shard = layer.shard_indices
        for first, end in rounding.drafted_rows(
            self.draft_vocabulary, layer.org_vocab_size,
            shard.org_vocab_start_index, shard.org_vocab_end_index,
        ):  # fmt: skip
            part = slice(first, end)
            out[:, part] = torch.ops.caovan.lm_head(
                rows, layer.weight[part], layer.weight_scale[part]
            )
        out = out.view(*x.shape[:-1], layer.weight.shape[0])
        return out if bias is None else out + bias


class Int8DrafterMethod(Int8Method, UnquantizedLinearMethod):
    """The method of a drafter's linear layers."""

    what = "drafter"


class Sm75LMHead(ParallelLMHead):
    """vLLM's lm_head; it uses caovan's method if it becomes int8."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, bias: bool = False, *args, **kwargs
    ) -> None:
        target = None if bias else drafter.target_of(num_embeddings, embedding_dim)
        if target is not None:
            with torch.device("meta"):
                super().__init__(num_embeddings, embedding_dim, bias, *args, **kwargs)
            self.share(target)
            return
        super().__init__(num_embeddings, embedding_dim, bias, *args, **kwargs)
        try:
            config = get_current_vllm_config()
            if int8_head.wanted(config) == "off":
                return
            reason = rounding.lm_head_refusal(facts(self, config))
            method = Int8LmHeadMethod(self.quant_method)
            method.draft_vocabulary = int8_head.draft_vocabulary(config)
            method.drafts_by = getattr(config.speculative_config, "method", None)
        except Exception as error:  # even a changed vLLM must start
            reason = library.reason_of(error)
        if reason:
            logger.warning_once("caovan: the lm_head stays in 16 bits: %s", reason)
            return
        self.quant_method = method

    def share(self, target: Sm75LMHead) -> None:
        """Use the weights of `target`, whatever is loaded: a checkpoint has one head for both."""
        self.quant_method = target.quant_method
        self.weight = torch.nn.Parameter(target.weight.data, requires_grad=False)
        self.weight.weight_loader = lambda parameter, loaded: None
        self.register_buffer("weight_scale", target.weight_scale, persistent=False)

    def tie_weights(self, embed_tokens):
        if isinstance(self.quant_method, Int8LmHeadMethod):
            self.quant_method = self.quant_method.in_tree
            reason = "its weights are shared with the embedding"
            logger.warning_once("caovan: the lm_head stays in 16 bits: %s", reason)
        return super().tie_weights(embed_tokens)
