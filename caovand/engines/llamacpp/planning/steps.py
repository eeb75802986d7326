"""How many tokens a step may process: llama-server answers nothing until it is done."""

from __future__ import annotations

from caovand.core.facts.inventory import Host, ModelCard
from caovand.engines.common.processors import core_of

STEP_S = 5.0
ON_CARDS, MAX_ON_CARDS = 512, 2048
"""Tokens that cards compute at once, and of a step: all at once where the buffers have room, and
where experts are in host memory, which are sent to a card once for each (gpt-oss-120b on a 3090
read prompts at 380 tokens/s in 512, at 1113 in 2048)."""
MIN_STEP, MAX_STEP = 32, 512


def active_weights(model: ModelCard) -> float:
    """Weights that a token multiplies with."""
    if model.gguf is None:
        return 0.0
    bits = 8 * model.gguf.size / max(_weights(model), 1)
    share = model.experts_per_token / model.experts if model.experts else 1.0
    size = sum(
        layer.size - layer.expert_size * (1 - share) for layer in model.gguf.layers if not layer.mtp
    )
    return (size + model.gguf.output) * 8 / max(bits, 1.0)


def _weights(model: ModelCard) -> float:
    """The number of weights, by the bits of each type."""
    assert model.gguf is not None
    return sum(size * 8 / BITS.get(name, 4.5) for name, size in model.gguf.types)


BITS = {
    "F32": 32, "F16": 16, "BF16": 16, "Q8_0": 8.5, "Q6_K": 6.56, "Q5_K": 5.5, "Q5_0": 5.5,
    "Q5_1": 6, "Q4_K": 4.5, "Q4_0": 4.5, "Q4_1": 5, "Q3_K": 3.44, "Q2_K": 2.63, "IQ4_XS": 4.25,
    "IQ4_NL": 4.5, "MXFP4": 4.25, "IQ3_S": 3.44, "IQ3_XXS": 3.06, "IQ2_XXS": 2.06,
}  # fmt: skip


def on_processor(model: ModelCard, host: Host) -> int:
    """Tokens of a step on these cores: a power of two that takes STEP_S seconds at most."""
    rate = host.cpus * core_of(host).gflop_s * 1e9 / max(2 * active_weights(model), 1.0)
    tokens = MIN_STEP
    while tokens * 2 <= min(rate * STEP_S, MAX_STEP):
        tokens *= 2
    return tokens
