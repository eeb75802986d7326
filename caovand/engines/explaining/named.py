"""The engine or other program that a log names, for lines that do not show their writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from caovand.engines import registry
from caovand.engines.common.logs.rows import ggml, unreached

MAX_LINE = 1000
_CLIENT = "Client of a server"
_TITLES: Mapping[tuple[str, ...], str] = {
    tuple(row.id for row in unreached.ROWS): _CLIENT,
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
_SHARED = frozenset(row.id for row in ggml.FILE)
ENGINES_TOO = "Host, driver or container"
"""The title of failures that engines meet, too: an engine's name, if the log has one, says more."""


def engine_named(lines: Sequence[str]) -> str:
    """The one engine that a log names; "" if it names none, or several."""
    starts = [line[:MAX_LINE] for line in lines]
    named = [e.name for e in registry.engines() if any(map(e.log.named.search, starts))]
    return named[0] if len(named) == 1 else ""


def title_outside(signature: str) -> str:
    """Who printed a row that is of no engine; "" if an engine may have."""
    if any(signature.startswith(engine.log.own_rows.client) for engine in registry.engines()):
        return _CLIENT
    return next((title for ids, title in _TITLES.items() if signature.startswith(ids)), "")


def is_own(signature: str) -> bool:
    """Whether only one engine's table has a row: that engine's advice is the precise one."""
    prefixes = tuple(filter(None, (engine.log.own_rows.prefix for engine in registry.engines())))
    return signature.startswith(prefixes) and signature not in _SHARED
