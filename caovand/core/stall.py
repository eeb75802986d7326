"""How long each phase of a start may stand still before the start is given up.

Progress inside a phase begins its time anew, so these are times between two signs of life, not
totals. Most phases say something every few seconds. Reading weights does not where one shard is a
whole model on a slow disk; and from `compile` to `warmup` one core may compile kernels in one step
without a word.
"""

from __future__ import annotations

from collections.abc import Mapping

STALL_S: Mapping[str, float] = {
    "load": 1800.0,
    "drafter": 1800.0,
    "compile": 1800.0,
    "profile": 1800.0,
    "kv": 1800.0,
    "capture": 900.0,
    "warmup": 1800.0,
    "http": 300.0,
}
OTHER_S = 600.0  # before the engine's first sign, and while it is proven


def stall_s(phase: str, given: float | None) -> float:
    """Seconds a phase may stand still: what the operator has `given`, else the phase's own."""
    return STALL_S.get(phase, OTHER_S) if given is None else given
