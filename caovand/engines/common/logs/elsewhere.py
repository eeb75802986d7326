"""Logs from Windows or macOS, where vLLM and SGLang do not run by themselves: the paths show it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from caovand.core.engine.log import Explanation
from caovand.engines.common.logs.signature import MAX_LINE

_SYSTEMS = re.compile(
    r"(?P<windows>(?<![A-Za-z])[A-Za-z]:\\{1,2}[\w. -]{1,60}\\|\bwin_amd64\b|\bWinError \d)"
    r"|(?P<mac>(?<!\w)/Users/[\w. -]{1,60}/|/(?:private/)?var/folders/|\bmacosx_\d|\bmacOS-\d)"
)
_PACKAGE_ROWS = (
    "build.toolkit", "build.failed", "build.compiler", "build.source", "python.install",
    "python.wheel", "python.abi", "python.triton", "python.cpu", "engine.broken",
    "gpu.absent", "sglang.absent", "model.uninspected",
)  # fmt: skip
"""Rows of what those systems lack: wheels, compiled parts, CUDA."""
_ADVICE = {
    "windows": "These lines are from Windows, where {engine} is not to be had: install it in "
    "WSL2 (wsl --install, then pip in Ubuntu), or run its image with Docker Desktop. Python and "
    "CUDA for Windows do not help.",
    "mac": "These lines are from macOS, which has no CUDA, and {engine} needs it to be installed "
    "with pip. Serve from Linux with a card, or use llama.cpp, Ollama or MLX on the Mac; vLLM also "
    "runs slowly on its processor, if built from its sources (requirements/cpu.txt, pip install "
    "-e .).",
}


_ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}
_NEEDS_CUDA = "build.toolkit"


def with_system(explanation: Explanation, name: str, lines: Sequence[str]) -> Explanation:
    """An explanation, preceded by what to do if a log of the engine `name` is from a system that it
    has no packages for."""
    finding, engine = explanation.finding, _ENGINES.get(name)
    if finding is None or finding.signature not in _PACKAGE_ROWS:
        return explanation
    if engine is None and (name or finding.signature != _NEEDS_CUDA):
        return explanation
    matches = (match for line in lines if (match := _SYSTEMS.search(line[:MAX_LINE])))
    if (system := next(matches, None)) is None:
        return explanation
    first = _ADVICE[system.lastgroup or ""].format(engine=engine or "this package")
    return replace(explanation, advice=(first, *explanation.advice))
