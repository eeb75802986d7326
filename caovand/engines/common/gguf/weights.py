"""The number of weights of a model in GGUF files, and the number that a token uses."""

from __future__ import annotations

from caovand.core.checkpoint.gguf import TYPES
from caovand.core.facts.inventory import Host, ModelCard
from caovand.engines.common.processors import core_of
from caovand.engines.common.tensors import part_of_experts

BITS = {name: 8 * size / count for name, count, size in TYPES.values()}


def active_weights(model: ModelCard) -> float:
    """The number of weights that a token multiplies with."""
    if model.gguf is None:
        return 0.0
    bits = 8 * model.gguf.size / max(_count_weights(model), 1)
    rest = 1 - part_of_experts(model)
    size = sum(
        layer.size - layer.expert_size * rest for layer in model.gguf.layers if not layer.mtp
    )
    return (size + model.gguf.output) * 8 / max(bits, 1.0)


def tokens_computed(model: ModelCard, host: Host) -> float:
    """The number of tokens a second that the host's cores multiply with the weights."""
    return host.cpus * core_of(host).gflop_s * 1e9 / max(2 * active_weights(model), 1.0)


def _count_weights(model: ModelCard) -> float:
    """The number of weights, by the bits of each type."""
    assert model.gguf is not None
    return sum(size * 8 / BITS.get(name, 4.5) for name, size in model.gguf.types)
