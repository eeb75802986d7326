"""The state files of a slot: where they are, and how to tell whether one is usable.

All of it is in a folder of the slot, STATE/slots/NAME. Versions without slots kept it in STATE
itself: the daemon moves it, and whoever reads a file without the daemon finds it in either place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from caovand.adapters.files import stale_files, state_file
from caovand.adapters.incidents import Incidents
from caovand.core.config.schema import MODES
from caovand.core.facts import ledger
from caovand.core.healing.degraded import well_formed
from caovand.core.healing.rung import Healing
from caovand.core.health.canary import from_document as first_answers
from caovand.core.reporting import starts
from caovand.core.slot import ONLY
from caovand.core.tuning import record
from caovand.daemon import tuning
from caovand.daemon.engine import canary
from caovand.daemon.start import degraded_plan

SLOTS = "slots"
MODE = "mode.json"
PROCESSES = "engine-processes.json"
FILES = "engine-files.json"
INCIDENTS = "incidents"
STARTS = "starts.json"
ALL = (MODE, degraded_plan.FILE, PROCESSES, FILES, INCIDENTS, STARTS, tuning.FILE, canary.FILE)


def folder(state: Path, name: str = ONLY) -> Path:
    """The folder of a slot's state."""
    return state / SLOTS / name


def make(state: Path, name: str) -> None:
    """Make the folder of a slot's state; raises OSError."""
    folder(state, name).mkdir(mode=0o750, parents=True, exist_ok=True)


def find(state: Path, file: str, name: str = ONLY) -> Path:
    """The path of this state file.

    The only slot's may still be where versions without slots kept it: such a daemon ran last, or
    the file could not be moved.
    """
    own, former = folder(state, name) / file, state / file
    return former if name == ONLY and os.path.lexists(former) else own


def take_over(state: Path) -> Iterator[str]:
    """Move the files of a version without slots to the only slot; yield a message for each.

    Each is moved by one rename, so that it is in one place or the other whatever interrupts this.
    What the slot has already gives way: the older version ran last. But its engine's processes may
    live, and its incidents are worth reading: those are kept too.
    """
    own, moved = folder(state), list[str]()
    for file in filter(lambda file: os.path.lexists(state / file), ALL):
        former, target = state / file, own / file
        try:
            make(state, ONLY)
            if file == INCIDENTS and target.is_dir() and former.is_dir():
                Incidents(target).take_over(Incidents(former))
            elif file == PROCESSES and os.path.lexists(target):
                continue  # the processes of both are ended before a start
            else:
                state_file.move(former, target)
        except OSError as problem:
            yield f"cannot move {former} to {own}: {problem.strerror}; it stays in use where it is"
        else:
            moved.append(file)
    if moved:
        yield f"moved {', '.join(moved)} of an earlier version from {state} to {own}"


def ledgers(state: Path, name: str) -> tuple[Path, ...]:
    """The ledgers with processes of the slot's earlier engines, its own first."""
    former = (state / PROCESSES,) if name == ONLY else ()
    return (folder(state, name) / PROCESSES, *former)


def mark(state: Path, name: str) -> Path:
    """The path from which the name of the engine's temporary folder is derived.

    The only slot's is that of versions without slots, so that what their engines left there goes.
    """
    return (state if name == ONLY else folder(state, name)) / FILES


def _is_mode(found: Any) -> bool:
    mode = found.get("mode", 0) if isinstance(found, dict) else 0
    return mode is None or (isinstance(mode, str) and mode in MODES)


def checks(healing: Healing) -> Mapping[str, Callable[[Any], bool]]:
    """The check of each file's content, by name."""
    return {
        MODE: _is_mode,
        degraded_plan.FILE: partial(well_formed, healing=healing),
        PROCESSES: ledger.is_ledger,
        FILES: stale_files.is_ledger,
        STARTS: lambda found: starts.from_document(found) is not None,
        tuning.FILE: lambda found: record.from_document(found) is not None,
        canary.FILE: lambda found: first_answers(found) is not None,
    }


def set_aside(state: Path, healing: Healing) -> Iterator[str]:
    """Rename the files that this version cannot use; yield a message for each."""
    for text in state_file.set_aside(state, checks(healing)):
        lost = "; processes of an engine before, if any, are not known" if PROCESSES in text else ""
        yield text + lost
