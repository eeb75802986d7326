"""The load of a plan: the facts that determine memory, and the bytes of weights and of a token's
cache."""

from __future__ import annotations

from dataclasses import dataclass

from caovand.core.checkpoint.shapes import attention_part
from caovand.core.facts.inventory import ModelCard, ModelPart, Weights
from caovand.engines.common.tensors import FLOATS, STORED, element_bytes, of_rank

EIGHT_BITS = ("fp8_e4m3", "fp8_e5m2")
AT_LOAD = "fp8"
"""The value of --quantization that quantises 16-bit weights once they are loaded."""
ROUNDED = ("layers", "experts")
"""The parts whose weights it quantises."""
RECURRENT = ("linear_attention", "mamba")
"""Layer types that have a state instead of a cache."""
WINDOW_POOLS = frozenset({
    "GptOssForCausalLM", "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration",
})  # fmt: skip
"""Architectures whose windowed layers have a smaller pool (`is_hybrid_swa_model`); in others these
layers keep all tokens."""
WINDOW_SHARE = 0.8
"""Tokens in that pool per token of the full one (--swa-full-tokens-ratio)."""


@dataclass(frozen=True)
class SglangLoad:
    """The facts that determine memory; `share` is --mem-fraction-static."""

    context: int
    requests: int
    step: int
    share: float
    ranks: int = 1
    attention_groups: int = 1
    """Groups of cards that each attend to their own requests; `requests` and `step` are per
    group."""
    depth: int = 0
    cache_type: str = "auto"
    activation: int = 2
    graphs: bool = True
    images: bool = False
    rounded: bool = False
    """Whether 16-bit weights are quantised to 8 bits."""
    slots: int = 0
    """Recurrent states (--max-mamba-cache-size); 0 for as many as SGLang makes room for."""
    prefixes: bool = True
    """Whether the radix cache keeps prefixes, and recurrent states with them."""

    @property
    def attending(self) -> int:
        """The number of cards that share the attention of one request."""
        return max(self.ranks // self.attention_groups, 1)


def weights_bytes(model: ModelCard, load: SglangLoad, *parts: ModelPart) -> float:
    """Weights of one rank, by default of all parts; the drafting head's only if it drafts.

    Each attention group has the complete embedding and attention weights.
    """
    kept = (
        weights for weights in model.weights
        if (weights.part != "mtp" or load.depth) and (not parts or weights.part in parts)
    )  # fmt: skip
    absorbed = 0.0 if parts and "layers" not in parts else _absorbed_bytes(model, load)
    return sum(_on_rank(weights, model, load) for weights in kept) + absorbed


def _on_rank(weights: Weights, model: ModelCard, load: SglangLoad) -> float:
    size, attention = _size(weights, model, load), 0.0
    if load.attention_groups > 1:
        attention = size * _part_of_group(weights, model)
    shared = of_rank(size - attention, weights, model, load.ranks)
    return shared + of_rank(attention, weights, model, load.attending)


def _part_of_group(weights: Weights, model: ModelCard) -> float:
    """The fraction of these weights that an attention group does not share with others."""
    if weights.part == "embedding" or weights.sharding == "kv":
        return 1.0
    if weights.part != "layers":
        return 0.0
    return attention_part(model, as_float=STORED.get(weights.dtype, 0) >= 16)


def _absorbed_bytes(model: ModelCard, load: SglangLoad) -> float:
    """Bytes of MLA's key and value projection, which SGLang copies as floats to absorb it."""
    if model.mla is None:
        return 0.0
    widths = model.mla.key_dim + model.mla.value_dim
    size = model.heads * widths * model.mla.rank * len(model.layer_types)
    return size * load.activation / load.attending


def _size(weights: Weights, model: ModelCard, load: SglangLoad) -> float:
    stored = FLOATS.get(weights.dtype) if model.quantization is None else None
    if stored is None:
        return weights.size
    each = 1 if load.rounded and weights.part in ROUNDED else load.activation
    return weights.size * each / stored


def token_bytes(model: ModelCard, load: SglangLoad) -> float:
    """Bytes of a token's cache on one rank."""
    element = 1 if load.cache_type in EIGHT_BITS else load.activation
    if load.cache_type in ("bf16", "bfloat16"):
        element = 2
    window = WINDOW_SHARE if model.architecture in WINDOW_POOLS else 1
    layers = float(model.mtp_layers if load.depth else 0)
    for kind in model.cached_layers:
        layers += window if kind == "sliding_attention" else kind not in RECURRENT
    if model.latent:
        return layers * (model.latent * element + model.indexer)
    heads = max(1, model.kv_heads // load.attending)
    return layers * 2 * heads * model.head_dim * element


def activation_bytes(model: ModelCard, dtype: object) -> int:
    """Bytes per element of an activation; `dtype` is --dtype."""
    return element_bytes(model.dtype if dtype in (None, "auto") else str(dtype))
