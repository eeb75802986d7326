"""The maximum silence of each phase of a start before the start is abandoned.

A slow start is fine, a silent one is not: any sign of progress restarts the timer. Most phases
print something every few seconds. The exceptions are reading weights, where one shard may be the
whole model on a slow disk, and `compile` to `warmup`, where one core may silently compile kernels
in a single step.
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
OTHER_S = 600.0  # before the engine's first line, and during the proof


def stall_s(phase: str, configured: float | None) -> float:
    """Seconds a phase may be silent: the operator's value, else the phase's default."""
    return STALL_S.get(phase, OTHER_S) if configured is None else configured
