"""Estimate the weights of a model without files from the shapes in its configuration.

vLLM creates weights with `--load-format dummy`, so that a plan can be tried before a download. The
estimate is within two percent for transformers with gated MLPs, experts, MLA and Gated DeltaNet; a
quantised checkpoint may be larger if it keeps some layers as floats.
"""

from __future__ import annotations

from caovand.core.checkpoint.tensors import LAYERED
from caovand.core.facts.inventory import LinearAttention, ModelCard, ModelPart, Sharding, Weights

BYTES = 2
"""Dummy weights use the activation dtype, float16 or bfloat16."""


def weights_by_shape(
    model: ModelCard, tied: bool, gated: bool, bits: float = 8 * BYTES
) -> tuple[Weights, ...]:
    """Sizes by part; `tied` shares embedding and head, `gated` attention has an output gate.

    `bits` apply to quantised weights: linear layers and experts; for gpt-oss only experts.
    """
    hidden = model.hidden_size
    sharded, keys, replicated = _attention(model, gated)
    dense = 3 * hidden * (model.dense_size or model.intermediate_size)
    shared = 3 * hidden * model.shared_size
    state = _count_recurrent(hidden, model.linear) if model.linear else 0
    router = hidden * model.experts
    experts = 3 * hidden * (model.expert_size or model.intermediate_size) * model.experts
    head = 2 * hidden * hidden + sharded + keys + replicated + experts + router
    head += shared if model.experts else dense
    attends = [kind not in ("linear_attention", "mamba") for kind in model.layer_types]
    # If only some layers have experts, they are mostly the later ones.
    routed = [bool(model.experts) and n >= model.dense_layers for n in range(len(attends))]
    layers = list(zip(attends, routed, strict=True))
    parts: list[tuple[ModelPart, Sharding, list[int]]] = [
        ("embedding", "sharded", [model.vocab_size * hidden]),
        ("head", "sharded", [0 if tied else model.vocab_size * hidden]),
        ("layers", "sharded", [
            (sharded if attending else state) + (shared if routes else dense)
            for attending, routes in layers
        ]),
        ("layers", "kv", [keys * attending for attending, _ in layers]),
        ("layers", "replicated", [
            2 * hidden + replicated * attending + router * routes for attending, routes in layers
        ]),
        ("experts", "sharded", [experts * routes for _, routes in layers]),
        ("mtp", "sharded", [model.mtp_layers * head]),
    ]  # fmt: skip
    packed = {"experts"} if model.quantization == "mxfp4" else {"experts", "layers"}
    if bits == 8 * BYTES:
        packed = set()
    return tuple(
        _weights_of_part(
            part, sharding, sizes, bits if part in packed and sharding != "replicated" else None
        )
        for part, sharding, sizes in parts
        if sum(sizes)
    )


def _weights_of_part(
    part: ModelPart, sharding: Sharding, sizes: list[int], bits: float | None
) -> Weights:
    """Weights of so many parameters per layer, in the activation dtype or quantised to `bits`."""
    layers, count = tuple(sizes) if part in LAYERED else (), sum(sizes)
    if bits is None:
        return Weights(part, sharding, "BF16", count * BYTES, layers)
    stored = "F8_E4M3" if bits >= 8 else "U8"  # the type that packs several weights
    return Weights(part, sharding, stored, int(count * bits / 8), layers)


def _attention(model: ModelCard, gated: bool) -> tuple[int, int, int]:
    """Parameters of an attention layer: split by heads, split by key-value heads, and
    replicated."""
    hidden, mla = model.hidden_size, model.mla
    if mla is None:
        queries = hidden * model.heads * model.head_dim * (3 if gated else 2)
        return queries, 2 * hidden * model.kv_heads * model.head_dim, 0
    query = mla.key_dim + model.latent - mla.rank
    split = model.heads * (
        (mla.query_rank or hidden) * query
        + mla.rank * (mla.key_dim + mla.value_dim)
        + hidden * mla.value_dim
    )
    return split, 0, hidden * (mla.query_rank + model.latent)


def attention_part(model: ModelCard, *, as_float: bool) -> float:
    """The part of attention in a transformer's weights that are split by heads or width, experts
    apart: in those stored as floats, or in the others."""
    if as_float and model.quantization and "attention" in model.spared:
        return 1.0
    if not as_float and "attention" in model.spared:
        return 0.0
    count, routed = len(model.layer_types), 0
    if model.experts:
        routed = count - model.dense_layers
    attention = count * _attention(model, gated=False)[0]
    dense = 3 * model.hidden_size * (model.dense_size or model.intermediate_size)
    others = routed * 3 * model.hidden_size * model.shared_size + (count - routed) * dense
    return attention / (attention + others) if attention else 0.0


def _count_recurrent(hidden: int, linear: LinearAttention) -> int:
    """Parameters of a Gated DeltaNet layer: the input (q, k, v, z, b, a) and output projections."""
    keys, values = linear.key_heads * linear.key_dim, linear.value_heads * linear.value_dim
    return hidden * (2 * keys + 2 * values + 2 * linear.value_heads) + values * hidden
