"""Detect processes that vanished without a message, perhaps killed from outside."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

SILENT_ROWS = frozenset({"worker.died", "engine.exited", "engine.lost"})
"""Rows that report that a process is gone, but not why; for a lost engine core vLLM 0.21 prints
only the last one."""
_CORE_ROWS = SILENT_ROWS - {"worker.died"}
_REPORTED = "engine.dead"
_CORE = "(EngineCore"


def is_unexplained(
    row: str, captures: Mapping[str, str], phase: str, rows: Collection[str], lines: Sequence[str]
) -> bool:
    """Whether nothing explains this row: neither another one of `rows` nor the exit status."""
    if row not in SILENT_ROWS or captures.get("code", "0").lstrip("0").isdecimal():
        return False
    if row in _CORE_ROWS and _REPORTED in rows:
        return False
    # The end of a log alone does not show that the core printed nothing.
    shown = phase == "serving" or row != "engine.lost"
    return shown or any(line.startswith(_CORE) for line in lines)
