"""Explain a complete log of Ollama after the fact: phases, figures, the failure, advice."""

from __future__ import annotations

import re
from collections.abc import Sequence

from caovand.core.healing.failure import Finding
from caovand.engines.common.logs.hit import MAX_TEXT
from caovand.engines.common.logs.whole_log import Explainer
from caovand.engines.ollama.healing.advice import advise
from caovand.engines.ollama.log.cause import find_cause
from caovand.engines.ollama.log.line import take_apart
from caovand.engines.ollama.log.phases import read
from caovand.engines.ollama.log.signatures import HARMLESS

_BEGIN = "server config"
"""Text of the first line; releases before 0.6.7 format that line differently."""


_NO_CARD = re.compile(
    r"no (?:compatible )?GPUs? (?:were discovered|detected)|inference compute.{0,80} library=cpu\b"
)
_CARD = re.compile(
    r"(?:CUDA_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|HSA_OVERRIDE_GFX_VERSION):"
    r"[\w.-]|Discovered GPU libraries: \[[^\]]|\bamdgpu\b|init failure"
    r"|cudaSetDevice err|(?:Nvidia|NVIDIA|Radeon|Intel) GPU detect"
    r"|inference compute.{0,80} library=(?!cpu)\w|Device \d{1,3}: "
)
"""Evidence that the machine has a card, or that someone expects one."""


def _find(lines: Sequence[str], phase: str = "serving", *, alive: bool = False) -> Finding | None:
    """The cause of a failure, else a card that the server did not use, which ends no server."""
    if found := find_cause(lines, phase, alive=alive):
        return found
    unused, hinted = None, False
    for number, line in enumerate(lines, 1):
        hinted = hinted or bool(_CARD.search(line[: MAX_TEXT * 4]))
        if unused is None and _NO_CARD.search(line[:MAX_TEXT]):
            text = line.strip()[:MAX_TEXT]
            unused = Finding("gpu-absent", text, "http", {}, "ollama.cards.unused", number)
    return unused if hinted else None


def _begins(line: str) -> bool:
    return _BEGIN in line[:100] and (line.startswith("time=") or " routes.go:" in line[:40])


explain = Explainer(
    begins=_begins,
    at_s=lambda line: take_apart(line).at_s,
    read=read,
    harmless=HARMLESS,
    find_cause=_find,
    advise=advise,
    last="load",
)
