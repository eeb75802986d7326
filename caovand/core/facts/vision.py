"""The shape of a vision tower, as far as it determines the memory for encoding images."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VisionTower:
    """A vision transformer; widths are elements per patch, lengths tokens of the language model."""

    family: str
    """config.json's own type, such as "qwen2_5_vl"."""
    hidden_size: int
    inner_size: int
    """Width between the projections of an MLP."""
    pixels: int
    """Values of a patch before it is embedded."""
    patches: int
    """Patches that become one token."""
    image_tokens: int
    """Tokens of the largest image."""
    frame_tokens: int
    """Tokens that a video's next frames add at their largest."""
    token_pixels: int = 0
    """Pixels that become one token; 0 if the model divides images into tiles."""
