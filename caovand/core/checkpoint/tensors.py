"""Map tensor names to the part of the model they belong to and to how GPUs split them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from caovand.core.facts.inventory import ModelPart, Sharding, Weights

VISION_TENSOR = re.compile(
    r"(^|\.)(visual|vision_tower|vision_model|vision_encoder|vit|image_newline|audio_tower"
    r"|audio_model|multi_modal_projector|mm_projector|embed_vision|embed_audio)(\.|$)"
)
MTP = re.compile(r"(^|\.)mtp(\.|$)|(^|\.)nextn(\.|$)")
EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte|word_embeddings|tok_embeddings)(\.|$)")
HEAD = re.compile(r"^(language_model\.)?(lm_head|output)\.")
EXPERTS = re.compile(r"\.experts\.|\.experts_|block_sparse_moe\.w")
REPLICATED = re.compile(
    r"norm|\.mlp\.gate\.|\.router\.|shared_expert_gate|\.g_idx$|rotary|weight_shape$"
    r"|\.input_scale$|\.(kv_a|q_a)_proj"
)
KEY_VALUE = re.compile(r"\.(k_proj|v_proj|kv_proj)\.|\.(k_scale|v_scale)$")
LAYERED: frozenset[ModelPart] = frozenset({"layers", "experts"})
"""Parts inside the model's own layers."""
SHARED = re.compile(r"(^|\.)(embed_tokens|shared_head\.head)\.")
"""Tensors that the files of an MTP head repeat; engines share them with the model."""
DIGITS = b"0123456789"
LAYER = re.compile(r"(^|\.)(layers|h|blocks)\.(\d{1,9})\.")


def part_of_tensor(name: str, layers: int) -> ModelPart:
    """The tensor's part of the model; layers beyond the model's own belong to its MTP head."""
    if VISION_TENSOR.search(name):
        return "vision"
    number = LAYER.search(name)
    if MTP.search(name) or (layers and number and int(number.group(3)) >= layers):
        return "mtp"
    if EMBEDDING.search(name):
        return "embedding"
    if HEAD.search(name):
        return "head"
    return "experts" if EXPERTS.search(name) else "layers"


def sharding(name: str) -> Sharding:
    """The way in which tensor parallelism splits a tensor."""
    if REPLICATED.search(name):
        return "replicated"
    return "kv" if KEY_VALUE.search(name) else "sharded"


class _Kind(NamedTuple):
    """The meaning of a name without its numbers; `layer` is the index of the dotted part with the
    layer number."""

    part: ModelPart
    sharding: Sharding
    at: int
    shared: bool


def _kind(name: str) -> _Kind:
    number = LAYER.search(name)
    at = name.count(".", 0, number.start(3)) if number else -1
    return _Kind(part_of_tensor(name, 0), sharding(name), at, SHARED.search(name) is not None)


def sum_sizes(tensors: Iterable[tuple[str, str, int]], layers: int) -> tuple[Weights, ...]:
    """Sum sizes by part, sharding and type, from (name, type, bytes) of every tensor."""
    sums: dict[tuple[ModelPart, Sharding, str], int] = defaultdict(int)
    by_layer: dict[tuple[ModelPart, Sharding, str], list[int]] = {}
    kinds: dict[bytes, _Kind] = {}
    for name, dtype, size in tensors:
        # A hundred thousand tensor names differ only in their expert and layer numbers.
        plain = name.encode(errors="surrogatepass").translate(None, DIGITS)
        kind = kinds.get(plain) or kinds.setdefault(plain, _kind(name))
        part = kind.part
        if kind.at >= 0 and layers:
            digits = name.split(".", kind.at + 1)[kind.at]
            number = int(digits[-10:]) if digits.isdecimal() else -1
            part = "mtp" if number >= layers and part != "vision" else part
            if part in LAYERED and number >= 0:
                each = by_layer.setdefault((part, kind.sharding, dtype), [0] * layers)
                each[number] += size
        if part == "mtp" and kind.shared:
            continue
        sums[part, kind.sharding, dtype] += size
    return tuple(
        Weights(*key, size, tuple(by_layer.get(key, ()))) for key, size in sorted(sums.items())
    )
