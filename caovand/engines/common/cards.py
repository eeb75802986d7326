"""The cards that an engine's build has code for, and cards without tensor cores."""

from __future__ import annotations

import re
from collections.abc import Sequence

from caovand.core.facts.inventory import EngineInfo, Gpu
from caovand.core.facts.shortfalls import oldest_card

_MADE_FOR = re.compile(r"sm_?(\d{1,2})(\d)([af]?)\Z")
_WITHOUT_TENSOR_CORES = re.compile(
    r"\b(GTX 16\d\d|MX[45]50|T400|T500|T550|T600|T1000|T1200|CMP 30HX)\b"
)
"""Cards of SM75 that lack Turing's tensor cores."""


def compiled_for(engine: EngineInfo, gpu: Gpu) -> bool:
    """Whether a build has machine code for a card, by the capabilities it lists or those of its
    CUDA release."""
    if engine.kernels:
        return any(_can_run(name, gpu) for name, _ in engine.kernels)
    return gpu.compute_capability >= oldest_card(engine.cuda)


def _can_run(made_for: str, gpu: Gpu) -> bool:
    """Whether code for one capability runs on another: code for 8.0 runs on 8.6, code for 9.0a only
    on 9.0.
    """
    match = _MADE_FOR.match(made_for)
    if match is None:
        return False
    major, minor = int(match[1]), int(match[2])
    own_major, own_minor = gpu.compute_capability
    if match[3] == "a":
        return (major, minor) == (own_major, own_minor)
    return major == own_major and minor <= own_minor


def without_tensor_cores(gpus: Sequence[Gpu]) -> str:
    """Description of the first SM75 card without tensor cores; empty if there is none."""
    for gpu in gpus:
        if gpu.compute_capability == (7, 5) and _WITHOUT_TENSOR_CORES.search(gpu.name):
            return f"GPU {gpu.index} ({gpu.name}) has no tensor cores"
    return ""
