"""Bytes that ggml allocates for llama.cpp: caches, states and compute buffers of a load.

The caches are exact for architectures with plain, windowed, latent or recurrent layers; the compute
buffers were fitted to the sizes that llama-server reports (`tests/engines/llamacpp`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from caovand.core.facts.gguf import GgufLayer
from caovand.core.facts.inventory import ModelCard

CELLS = 256
"""A slot's cache holds a multiple of this many tokens."""
CACHE_TYPES: Mapping[str, tuple[int, int]] = {
    "f32": (1, 4), "f16": (1, 2), "bf16": (1, 2), "q8_0": (32, 34), "q4_0": (32, 18),
    "q4_1": (32, 20), "iq4_nl": (32, 18), "q5_0": (32, 22), "q5_1": (32, 24),
}  # fmt: skip
"""Elements and bytes of a block."""
MASK_BYTES = 2
"""Bytes of the attention mask per pair of a step's token and a cached one."""


def why_undividable(kind: str, width: int) -> str:
    """Why heads of this width (0 if unknown) cannot have a cache of a type; "" if they can."""
    block = CACHE_TYPES.get(kind, (1, 0))[0]
    if width % block == 0:
        return ""
    heads = f"the model's heads have {width} elements"
    return f"{heads}, and the cache type {kind} needs a multiple of {block}"


@dataclass(frozen=True)
class GgufLoad:
    """The parts of a plan that determine memory: context of one slot, slots, and cache types.

    `shared` slots have one cache of `context` tokens together; otherwise each has its own.
    With `whole_layers` a layer's routed experts go where the layer goes. `filled` are the tokens of
    context that a step reads in the model of its time.
    """

    context: int
    slots: int = 1
    shared: bool = False
    batch: int = 512
    keys: str = "f16"
    values: str = "f16"
    flash: bool = True
    depth: int = 0
    mtp: bool = False
    whole_layers: bool = False
    filled: int = 0

    @property
    def caches(self) -> int:
        """The number of caches of `context` tokens."""
        return 1 if self.shared else self.slots

    def windowed(self, window: int) -> int:
        """The tokens for which a layer with a sliding window keeps keys and values in a cache."""
        return min(self.context, window * (self.slots if self.shared else 1) + self.batch)


def padded_context(context: int) -> int:
    """The number of tokens that a slot's cache has room for."""
    return -(-context // CELLS) * CELLS


def cache_bytes(layer: GgufLayer, load: GgufLoad) -> int:
    """The cache of one layer for all slots; a drafting layer has one only if it drafts."""
    if layer.mtp and not load.mtp:
        return 0
    cells = padded_context(load.windowed(layer.window) if layer.window else load.context)
    types = ("f16", "f16") if layer.mtp else (load.keys, load.values)
    row = _row(layer.keys, types[0]) + _row(layer.values, types[1])
    return cells * load.caches * row


def cache_read_bytes(layer: GgufLayer, load: GgufLoad) -> int:
    """Bytes of one layer's cache that a token reads once its request has `filled` tokens."""
    one = replace(load, context=min(load.filled, load.context), slots=1, batch=0)
    return cache_bytes(layer, one)


def state_bytes(layer: GgufLayer, load: GgufLoad) -> int:
    """The recurrent state of one layer for all slots, with a copy for each drafted token."""
    return layer.state_size * load.slots * (1 + load.depth)


def _row(elements: int, kind: str) -> int:
    block, size = CACHE_TYPES.get(kind, (1, 2))
    return -(-elements // block) * size


def compute_bytes(model: ModelCard, load: GgufLoad) -> int:
    """Activations of the largest step on one device."""
    width = model.hidden_size
    experts = max(model.experts_per_token, 1)
    inner = max(model.intermediate_size if not model.experts else 0, model.expert_size * experts)
    tokens = min(load.batch, padded_context(load.context) * load.caches)
    mask = tokens * padded_context(load.context) * MASK_BYTES
    if model.sliding_window:
        mask += tokens * padded_context(load.windowed(model.sliding_window)) * MASK_BYTES
    elements = 3 * inner + (5 + (experts if model.experts else 0)) * width
    if not load.flash:
        scores = padded_context(load.context) * model.heads + 8 * width
        elements = max(elements, scores)
    drafting = 4 * tokens * (3 * inner + width) + mask if load.mtp else 0
    return 4 * tokens * elements + mask + drafting


def output_bytes(model: ModelCard, load: GgufLoad) -> int:
    """Logits, which are kept in host memory; a drafting context has its own."""
    return 4 * model.vocab_size * load.slots * (2 if load.mtp else 1)
