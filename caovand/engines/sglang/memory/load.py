"""A plan's load: the parameters that determine memory, and the bytes of weights and of a token's
cache."""

from __future__ import annotations

from dataclasses import dataclass

from caovand.core.facts.inventory import ModelCard, Part, Weights
from caovand.engines.common.tensors import FLOATS, element_bytes, of_rank

MIB = 1 << 20
EIGHT_BITS = ("fp8_e4m3", "fp8_e5m2")
AT_LOAD = "fp8"
"""The --quantization that rounds 16-bit weights after loading."""
ROUNDED = ("layers", "experts")
"""The parts whose weights it rounds."""
RECURRENT = ("linear_attention", "mamba")
"""Layer types that have a state instead of a cache."""
WINDOW_POOLS = frozenset({
    "GptOssForCausalLM", "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration",
})  # fmt: skip
"""Architectures whose windowed layers have a smaller pool (`is_hybrid_swa_model`); in others they
keep all tokens."""
WINDOW_SHARE = 0.8
"""Tokens in that pool relative to the full one (--swa-full-tokens-ratio)."""


@dataclass(frozen=True)
class Load:
    """The parameters that determine memory; `share` is --mem-fraction-static."""

    context: int
    requests: int
    step: int
    share: float
    ranks: int = 1
    depth: int = 0
    cache_type: str = "auto"
    activation: int = 2
    graphs: bool = True
    images: bool = False
    rounded: bool = False
    """Whether 16-bit weights are rounded to 8 bits."""
    slots: int = 0
    """Number of recurrent states (--max-mamba-cache-size); 0 for as many as SGLang makes room
    for."""


def weights_bytes(model: ModelCard, load: Load, *parts: Part) -> float:
    """Weights of one rank, by default of all parts; the draft head's only when drafting."""
    kept = (
        one for one in model.weights
        if (one.part != "mtp" or load.depth) and (not parts or one.part in parts)
    )  # fmt: skip
    return sum(of_rank(_size(one, model, load), one, model, load.ranks) for one in kept)


def _size(weights: Weights, model: ModelCard, load: Load) -> float:
    stored = FLOATS.get(weights.dtype) if model.quantization is None else None
    if stored is None:
        return weights.size
    each = 1 if load.rounded and weights.part in ROUNDED else load.activation
    return weights.size * each / stored


def token_bytes(model: ModelCard, load: Load) -> float:
    """Cache bytes per token on one rank."""
    element = 1 if load.cache_type in EIGHT_BITS else load.activation
    if load.cache_type in ("bf16", "bfloat16"):
        element = 2
    window = WINDOW_SHARE if model.architecture in WINDOW_POOLS else 1
    layers = float(model.mtp_layers if load.depth else 0)
    for kind in model.cached_layers:
        layers += window if kind == "sliding_attention" else kind not in RECURRENT
    if model.latent:
        return layers * (model.latent * element + model.indexer)
    heads = max(1, model.kv_heads // load.ranks)
    return layers * 2 * heads * model.head_dim * element


def activation_bytes(model: ModelCard, dtype: object) -> int:
    """Bytes per activation; `dtype` is --dtype."""
    return element_bytes(model.dtype if dtype in (None, "auto") else str(dtype))
