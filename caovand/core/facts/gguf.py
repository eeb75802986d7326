"""What a model in GGUF files holds, by layers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GgufLayer:
    """One layer of a GGUF model; sizes in bytes.

    `size` is that of its tensors, `expert_size` that of the routed experts among them. `keys` and
    `values` are the elements that its cache has for a token, `window` the tokens in that cache, 0
    for the whole context, `state_size` the recurrent state of one sequence. `mtp` marks a layer
    that only drafts.
    """

    size: int
    expert_size: int = 0
    keys: int = 0
    values: int = 0
    window: int = 0
    state_size: int = 0
    mtp: bool = False


@dataclass(frozen=True)
class Gguf:
    """A model in GGUF files: its layers, and the bytes of all other tensors.

    Each token looks up a row of `embedding` and is multiplied by `output`; a model whose `output`
    is 0 uses the embedding for both. `vision` is an image encoder in the same files, which Ollama's
    tags have, and no token of text reads. `types` are the bytes of each type of tensor,
    `files` names and sizes of the parts.
    """

    layers: tuple[GgufLayer, ...]
    embedding: int
    output: int
    rest: int
    types: tuple[tuple[str, int], ...]
    files: tuple[tuple[str, int], ...]
    vision: int = 0

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        outside = self.embedding + self.output + self.rest + self.vision
        return sum(layer.size for layer in self.layers) + outside
