"""Weights of a model whose folder has none, from the shapes that its configuration gives.

vLLM makes weights up with `--load-format dummy`, which is how a plan is tried before a download.
The result is within a few percent for transformers with gated MLPs, experts, and Gated DeltaNet;
where they are quantised, it may be less than a checkpoint that spares some layers.
"""

from __future__ import annotations

from caovand.core.inventory import LinearAttention, ModelCard, Part, Sharding, Weights

BYTES = 2
"""Made-up weights are of the activation type, which is half or bfloat16."""


def weights_by_shape(
    model: ModelCard, tied: bool, gated: bool, bits: float = 8 * BYTES
) -> tuple[Weights, ...]:
    """Sizes by part; `tied` shares embedding and head, `gated` attention has an output gate.

    `bits` are those of a quantised weight: linear layers and experts are, of gpt-oss experts only.
    """
    hidden, count = model.hidden_size, len(model.layer_types)
    recurrent = sum(kind in ("linear_attention", "mamba") for kind in model.layer_types)
    attending = count - recurrent
    queries = hidden * model.heads * model.head_dim * (3 if gated else 2)
    keys = 2 * hidden * model.kv_heads * model.head_dim
    dense = 3 * hidden * model.intermediate_size
    state = _recurrent(hidden, model.linear) if model.linear else 0
    feed = 3 * hidden * model.shared_size if model.experts else dense
    experts = 3 * hidden * (model.expert_size or model.intermediate_size) * model.experts
    parts: list[tuple[Part, Sharding, int]] = [
        ("embedding", "sharded", model.vocab_size * hidden),
        ("head", "sharded", 0 if tied else model.vocab_size * hidden),
        ("layers", "sharded", attending * queries + recurrent * state + count * feed),
        ("layers", "kv", attending * keys),
        ("layers", "replicated", count * 2 * hidden),
        ("experts", "sharded", count * experts),
        (
            "mtp",
            "sharded",
            model.mtp_layers * (2 * hidden * hidden + queries + keys + feed + experts),
        ),
    ]
    packed = {"experts"} if model.quantization == "mxfp4" else {"experts", "layers"}
    if bits == 8 * BYTES:
        packed = set()
    return tuple(
        Weights(part, way, "U8", int(size * bits / 8))
        if part in packed and way != "replicated"
        else Weights(part, way, "BF16", size * BYTES)
        for part, way, size in parts
        if size
    )


def _recurrent(hidden: int, linear: LinearAttention) -> int:
    """Parameters of one Gated DeltaNet layer: projections in (q, k, v, z, b, a) and out."""
    keys, values = linear.key_heads * linear.key_dim, linear.value_heads * linear.value_dim
    return hidden * (2 * keys + 2 * values + 2 * linear.value_heads) + values * hidden
