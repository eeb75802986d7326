"""Compute capabilities at which what vLLM has for a card changes."""

from __future__ import annotations

TURING = (7, 5)
"""The oldest that vLLM 0.21 has kernels for; cards before it are never chosen."""
AMPERE = (8, 0)
"""The first with bfloat16."""
ADA = (8, 9)
"""The first that converts 8-bit floats by itself."""
HOPPER = (9, 0)
BLACKWELL = (10, 0)
OWN_FP8 = HOPPER[0], BLACKWELL[0]
"""Generations for which vLLM's first choice of attention reads an fp8 cache."""
