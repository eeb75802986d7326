"""How many weights a model in GGUF files has, and a token multiplies with."""

from __future__ import annotations

from caovand.core.facts.inventory import Host, ModelCard
from caovand.engines.common.processors import core_of
from caovand.engines.common.tensors import part_of_experts

BITS = {
    "F32": 32, "F16": 16, "BF16": 16, "Q8_0": 8.5, "Q6_K": 6.56, "Q5_K": 5.5, "Q5_0": 5.5,
    "Q5_1": 6, "Q4_K": 4.5, "Q4_0": 4.5, "Q4_1": 5, "Q3_K": 3.44, "Q2_K": 2.63, "IQ4_XS": 4.25,
    "IQ4_NL": 4.5, "MXFP4": 4.25, "IQ3_S": 3.44, "IQ3_XXS": 3.06, "IQ2_XXS": 2.06,
}  # fmt: skip


def active_weights(model: ModelCard) -> float:
    """Weights that a token multiplies with."""
    if model.gguf is None:
        return 0.0
    bits = 8 * model.gguf.size / max(_weights(model), 1)
    rest = 1 - part_of_experts(model)
    size = sum(
        layer.size - layer.expert_size * rest for layer in model.gguf.layers if not layer.mtp
    )
    return (size + model.gguf.output) * 8 / max(bits, 1.0)


def tokens_computed(model: ModelCard, host: Host) -> float:
    """Tokens a second that the host's cores multiply with the weights."""
    return host.cpus * core_of(host).gflop_s * 1e9 / max(2 * active_weights(model), 1.0)


def _weights(model: ModelCard) -> float:
    """The number of weights, by the bits of each type."""
    assert model.gguf is not None
    return sum(size * 8 / BITS.get(name, 4.5) for name, size in model.gguf.types)
