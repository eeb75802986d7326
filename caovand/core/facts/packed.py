"""How compressed-tensors packed weights as integers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Packed:
    """How the experts of a mixture are packed, or the layers of a model without any.

    With `int8_inputs`, the checkpoint wants activations in 8 bits, too.
    """

    bits: int
    symmetric: bool
    int8_inputs: bool = False
