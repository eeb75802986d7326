"""What the daemon writes down for its next life, and how each of it must look to be used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from caovand import lowered
from caovand.adapters import child, litter, state_file
from caovand.core.config import MODES
from caovand.core.good_plan import well_formed

MODE = "mode.json"
PROCESSES = "engine-processes.json"
FILES = "engine-files.json"


def _is_mode(found: Any) -> bool:
    mode = found.get("mode", 0) if isinstance(found, dict) else 0
    return mode is None or (isinstance(mode, str) and mode in MODES)


CHECKS: Mapping[str, Callable[[Any], bool]] = {
    MODE: _is_mode,
    lowered.FILE: well_formed,
    PROCESSES: child.is_ledger,
    FILES: litter.is_ledger,
}


def set_aside(state: Path) -> Iterator[str]:
    """Rename what this version cannot use of them; what was done, in words."""
    for text in state_file.set_aside(state, CHECKS):
        lost = "; processes of an engine before, if any, are not known" if PROCESSES in text else ""
        yield text + lost
