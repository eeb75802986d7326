"""What a forward pass and the sampler hold at their peak, as vLLM's profiling run measures it.

Widths are elements a token. They were read from what PyTorch's allocator held at the peak of real
steps; the starts in tests/samples/starts hold the sums. A pass is profiled without attention's own
work, of which only what MLA sets aside counts.
"""

from __future__ import annotations

from caovand.core.facts.inventory import LinearAttention, ModelCard

MIB = 1 << 20
CUBLAS_MIB = 32
"""The workspace of matrix products, which stays."""
STREAMS, STREAMS_OF_GEMMA = 4, 5
"""Hidden states alive beside a layer's own: residual, input, output; Gemma has norms after too."""
FIRST_STREAMS, FIRST_STREAMS_DRAFTING = 3, 7
"""Hidden states alive while the first compiled piece runs for the first time, which copies the
embeddings; the drafting head's runs while the model's are still there."""
SAMPLER_BYTES, DRAFTING_SAMPLER_BYTES = 14, 30
"""Bytes a logit takes in the sampler's warm-up: as loaded, as float32, probabilities, noise."""
SAMPLER_ROWS = 132
"""Rows of float32 logits that the kernel for top-k and top-p keeps, one a multiprocessor."""
UNCOMPRESSED = 65536
"""Tokens of earlier context that MLA decompresses at once, where contexts are that long."""


def forward_bytes(
    model: ModelCard,
    *,
    tokens: int,
    ranks: int,
    activation: int,
    compiled: bool,
    drafting: bool,
    embeds: bool = True,
    experts_stay: bool = True,
    uncompressed: int = 0,
) -> float:
    """The peak of a step of so many tokens on one of the ranks.

    `embeds`: the embedding is here. `experts_stay`: what experts work in is kept from layer to
    layer.
    """
    attention = tokens * _attention_width(model, ranks)
    if model.mla:
        heads = max(1, model.heads // ranks)
        attention += uncompressed * heads * (model.mla.key_dim + model.mla.value_dim)
    width = max(tokens * _mlp_width(model, ranks), attention)
    experts = tokens * _experts_width(model, ranks, experts_stay)
    width = width + experts if experts_stay else max(width, experts)
    width += tokens * _streams(model) * model.hidden_size
    if compiled:
        streams = FIRST_STREAMS_DRAFTING if drafting else FIRST_STREAMS
        copied = model.vocab_size / ranks if embeds else 0
        first = model.hidden_size * (copied + tokens * streams)
        width = max(width, first)
    return CUBLAS_MIB * MIB + width * activation


def sampler_bytes(model: ModelCard, sequences: int, tokens: int, drafting: bool) -> float:
    """The peak of the sampler's warm-up, where every sequence ends a step of so many tokens."""
    logit = DRAFTING_SAMPLER_BYTES if drafting else SAMPLER_BYTES
    kept = CUBLAS_MIB * MIB + tokens * model.hidden_size * 2
    return kept + model.vocab_size * (sequences * logit + SAMPLER_ROWS * 4)


def uncompressed_tokens(context: int, sequences: int, block: int) -> int:
    """Tokens that MLA sets aside room for, to decompress what earlier steps have cached."""
    wanted = min(max(8 * context, 4 * sequences * block), UNCOMPRESSED)
    return max(wanted, sequences * block)


def _streams(model: ModelCard) -> int:
    return STREAMS_OF_GEMMA if model.model_type.startswith("gemma") else STREAMS


def _mlp_width(model: ModelCard, ranks: int) -> float:
    """Gate and up projections together, and their product."""
    dense = max(model.dense_size, model.shared_size) if model.experts else model.intermediate_size
    return 3 * dense / ranks


def _attention_width(model: ModelCard, ranks: int) -> float:
    """Projections of queries, keys and values, what norms make of them, and the output."""
    if model.mla:
        keys = model.mla.key_dim + (model.latent - model.mla.rank)
        heads = max(1, model.heads // ranks)
        return heads * (keys + model.mla.value_dim) + 2 * model.latent + model.mla.query_rank
    head = max(model.head_dim, model.global_head_dim)
    queries = max(1, model.heads // ranks) * head
    keys = max(1, model.kv_heads // ranks) * head
    gate = queries if model.linear else 0
    attention = 3 * (queries + keys) + gate
    recurrent = model.linear or model.mamba
    return max(attention, _recurrent_width(recurrent) / ranks) if recurrent else attention


def _recurrent_width(linear: LinearAttention) -> float:
    """One projection for all, its parts apart and convolved, the output and its norm."""
    keys, values = linear.key_heads * linear.key_dim, linear.value_heads * linear.value_dim
    return 4 * keys + 6 * values


def _experts_width(model: ModelCard, ranks: int, stay: bool) -> float:
    """What a token's experts work in, kept from layer to layer (`stay`) or for one of them."""
    if not model.experts:
        return 0.0
    inner, hidden = (model.expert_size or model.intermediate_size) / ranks, model.hidden_size
    if model.quantization == "mxfp4":  # one kernel computes gate, up and their product
        return model.experts_per_token * (inner + hidden)
    product = max(inner, hidden) if stay else inner
    return model.experts_per_token * (product + max(2 * inner, hidden))
