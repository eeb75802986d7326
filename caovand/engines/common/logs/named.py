"""The engine or other program that a log names, for lines that do not show their writer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from caovand.engines.common.logs.rows import ggml, unreached

_NAMES = re.compile(
    r"(?P<vllm>\bvllm(?:_\w{1,40})?\b(?!/(?:lib|bin)/)|\b(?-i:Vllm[A-Z]|RayWorker(?:Vllm|Wrapper)\b"
    r"|EngineCore failed to start))"
    r"|(?P<sglang>\bsglang\b(?!/(?:lib|bin)/)|\bsgl[-_]kernel\b)"
    r"|(?P<ollama>\bollama\b)"
    r"|(?P<llamacpp>\bllama(?:\.|-|_)cpp\b|\bllama-(?:server|cli)\b|\bllama_model_lo)",
    re.IGNORECASE,
)
"""Names of the engines in paths, commands, packages and prose; not those of environments."""
MAX_LINE = 1000
_TITLES: Mapping[tuple[str, ...], str] = {
    (*(row.id for row in unreached.ROWS), "ollama.client"): "Client of a server",
    ("container.",): "Container",
    ("studio.",): "LM Studio",
    ("desktop.",): "Desktop program",
    ("localai.",): "LocalAI",
    (
        "driver.", "nvml.", "system.", "files.", "loader.", "net.", "pod.", "unit.", "shm.",
        "sandbox.", "env.",
    ): "Host, driver or container",
}  # fmt: skip
"""Who printed the rows that begin so, whichever engine runs there."""
_OWN = ("llama.", "ollama.", "sglang.")
_SHARED = frozenset(row.id for row in ggml.FILE)
ENGINES_TOO = "Host, driver or container"
"""The title of failures that engines meet, too: an engine's name, if the log has one, says more."""


def engine_named(lines: Sequence[str]) -> str:
    """The one engine that a log names; "" if it names none, or several."""
    engines = {
        match.lastgroup or "" for line in lines for match in _NAMES.finditer(line[:MAX_LINE])
    }
    return engines.pop() if len(engines) == 1 else ""


def title_outside(signature: str) -> str:
    """Who printed a row that is of no engine; "" if an engine may have."""
    return next((title for ids, title in _TITLES.items() if signature.startswith(ids)), "")


def is_own(signature: str) -> bool:
    """Whether only one engine's table has a row: that engine's advice is the precise one."""
    return signature.startswith(_OWN) and signature not in _SHARED
