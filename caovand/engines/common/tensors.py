"""Sizes of tensors that engines share: activation types, a rank's weights, experts in use."""

from __future__ import annotations

from collections.abc import Mapping

from caovand.core.facts.inventory import ModelCard, ModelPart, Weights

BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}
FLOATS = {"F32": 4, "F16": 2, "BF16": 2}
"""Bytes of the float types of safetensors."""
STORED: Mapping[str, int] = {"F64": 64, "F32": 32, "BF16": 16, "F16": 16}
PACKED: Mapping[str, int] = {"I32": 4, "U8": 4}
"""Weights that a checkpoint packs into integers; GPTQ states its own bits."""
FEW_ACTIVE = 5e9
"""Active parameters of a mixture of experts, without embedding and head, at which published results
contradict each other: with 3 billion, drafts made it 27 % faster (Strix Halo), no faster (Arc B70),
23 % slower (V100), and slower on two 3090 (club-3090#990)."""

_BREAKS_IN_8_BITS = ("qwen2",)


def breaks_in_8_bits(model: ModelCard) -> bool:
    """Whether an 8-bit cache without calibrated scales is known to ruin the model's answers.

    Qwen2 and Qwen2.5, in all sizes and kinds (`qwen2_moe`, `qwen2_5_vl`), add a bias to their keys
    and do not normalise them: a few elements are so large that the others are lost in 8 bits
    (QwenLM/Qwen3#840, verl#4435: answers of punctuation, an accuracy of 0). Qwen3 normalises them.
    """
    return model.model_type.startswith(_BREAKS_IN_8_BITS)


def element_bytes(dtype: str) -> int:
    """Bytes of an activation type by any of its names; 2 for an unknown name."""
    return BYTES.get(dtype.removeprefix("torch."), 2)


def of_rank(size: float, weights: Weights, model: ModelCard, ranks: int) -> float:
    """Bytes on one rank, of `size` bytes of these weights."""
    if weights.sharding == "replicated":
        return size
    if weights.sharding == "kv" and not model.latent:
        return size / min(ranks, model.kv_heads)
    return size / ranks


def weights_of(model: ModelCard, part: ModelPart) -> float:
    """The number of weights in a part."""
    packed = model.gptq.bits if model.gptq else None
    count = 0.0
    for weights in model.weights:
        if weights.part == part:
            bits = STORED.get(weights.dtype) or (packed if weights.dtype in PACKED else None)
            count += weights.size * 8 / (bits or PACKED.get(weights.dtype, 8))
    return count


def part_of_experts(model: ModelCard) -> float:
    """The fraction of the routed experts that a token reads; all if their number is unknown."""
    known = model.experts and model.experts_per_token
    return model.experts_per_token / model.experts if known else 1.0


def active_parameters(model: ModelCard) -> float:
    """The parameters that compute a token, without embedding and head; approximate for quantised
    ones.

    Each tensor counts by its own type: 4-bit checkpoints often keep attention in 16 bits.
    """
    return weights_of(model, "layers") + weights_of(model, "experts") * part_of_experts(model)


def has_few_active(model: ModelCard) -> bool:
    """Whether drafts may make this mixture of experts slower."""
    return model.experts > 0 and active_parameters(model) < FEW_ACTIVE


def experts_read(model: ModelCard, tokens: float) -> float:
    """The part of the routed experts that a step of `tokens` tokens reads."""
    return float(1 - (1 - part_of_experts(model)) ** tokens)
