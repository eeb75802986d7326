"""Layers and tensors of a model in GGUF files."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GgufLayer:
    """A layer of a GGUF model; sizes in bytes.

    `size` is the total of its tensors, `expert_size` the routed experts' part of it. `keys` and
    `values` are the elements cached per token, `window` the number of cached tokens (0 for the
    whole context), `state_size` the recurrent state of one sequence. `mtp` marks a draft layer.
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

    Each token reads one row of `embedding` and all of `output`; if `output` is 0, the model uses
    the embedding for both. `vision` is an image encoder in the same files, as in Ollama's tags;
    text tokens never read it, and encoding the largest image takes `vision_graph` bytes. `types`
    are bytes by tensor type, `files` the parts' names and sizes.
    """

    layers: tuple[GgufLayer, ...]
    embedding: int
    output: int
    rest: int
    types: tuple[tuple[str, int], ...]
    files: tuple[tuple[str, int], ...]
    vision: int = 0
    vision_graph: int = 0

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        outside = self.embedding + self.output + self.rest + self.vision
        return sum(layer.size for layer in self.layers) + outside
