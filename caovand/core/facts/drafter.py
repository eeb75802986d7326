"""A separate model that drafts for another from the hidden states of some of its layers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Drafter:
    """A DFlash drafter, as its folder describes it: all tokens of a block come from one pass."""

    path: str
    architecture: str
    block: int
    """Tokens of the blocks that it was trained on, the known first one included."""
    reads: tuple[int, ...]
    """The layers of the target whose hidden states it reads, from 0."""
    target_layers: int
    """Number of layers of the target that it was trained for; 0 if unknown."""
    target_width: int
    """Width of the target's hidden states."""
    vocab_size: int
    layers: int
    width: int
    """Width of its own hidden states."""
    heads: int
    kv_heads: int
    head_dim: int
    windowed: bool = False
    """Whether some of its layers attend to a sliding window."""
    from_anchor: bool = False
    """Whether the first token of a block is drafted, too."""

    @property
    def depth(self) -> int:
        """The number of tokens that it was trained to draft."""
        return self.block - 1
