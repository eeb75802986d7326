"""Which engine a log names, and what lies outside of every engine, if no line shows its writer."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NAMES = re.compile(
    r"(?P<vllm>\bvllm(?:_\w{1,40})?\b|\b(?-i:Vllm[A-Z]))"
    r"|(?P<sglang>\bsglang\b|\bsgl[-_]kernel\b)"
    r"|(?P<ollama>\bollama\b)"
    r"|(?P<llamacpp>\bllama(?:\.|-|_)cpp\b|\bllama-(?:server|cli)\b|\bllama_model_lo)",
    re.IGNORECASE,
)
"""Names of the engines in paths, commands, packages and prose."""
MAX_LINE = 1000
_OUTSIDE = (
    "container.", "driver.", "nvml.", "system.", "files.", "loader.", "net.", "pod.", "unit.",
    "shm.", "sandbox.", "env.",
)  # fmt: skip
"""Rows of the system, its driver and its containers, whichever engine runs there."""


def engine_named(lines: Sequence[str]) -> str:
    """The one engine that a log names; "" if it names none, or several."""
    found = {match.lastgroup or "" for line in lines for match in _NAMES.finditer(line[:MAX_LINE])}
    return found.pop() if len(found) == 1 else ""


def is_of_container(signature: str) -> bool:
    """Whether a row is of a container's runtime, before an engine ran in it."""
    return signature.startswith("container.")


def is_outside(signature: str) -> bool:
    """Whether a row is of the machine: its driver, container runtime, network or limits."""
    return signature.startswith(_OUTSIDE)
