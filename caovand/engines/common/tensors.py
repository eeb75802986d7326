"""Sizes of tensors that engines of PyTorch hold alike: activation types, and a rank's weights."""

from __future__ import annotations

from caovand.core.facts.inventory import ModelCard, Weights

BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}
FLOATS = {"F32": 4, "F16": 2, "BF16": 2}
"""Bytes of the float types of safetensors."""


def element_bytes(dtype: str) -> int:
    """Bytes of an activation type by any of its names; 2 for an unknown name."""
    return BYTES.get(dtype.removeprefix("torch."), 2)


def of_rank(size: float, weights: Weights, model: ModelCard, ranks: int) -> float:
    """The bytes of one rank, of `size` bytes of these weights."""
    if weights.sharding == "replicated":
        return size
    if weights.sharding == "kv" and not model.latent:
        return size / min(ranks, model.kv_heads)
    return size / ranks
