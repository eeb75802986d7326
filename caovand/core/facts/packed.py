"""Weights that compressed-tensors packed as integers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Packed:
    """The packing of a mixture's experts, or of the layers of a model without any.

    With `int8_inputs`, the checkpoint specifies 8-bit activations, too.
    """

    bits: int
    symmetric: bool
    int8_inputs: bool = False
