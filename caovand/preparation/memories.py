"""A slot's state files: their locations, and checks of their contents.

All are in the slot's folder, STATE/slots/NAME. Versions without slots kept them in STATE itself:
the daemon moves them, and readers without a daemon find them in either place.
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
from caovand.core.slot import MAIN_SLOT
from caovand.core.tuning import record

SLOTS = "slots"
MODE = "mode.json"
PROCESSES = "engine-processes.json"
FILES = "engine-files.json"
INCIDENTS = "incidents"
STARTS = "starts.json"
DEGRADED_PLAN = "good-plan.json"
TUNING = "tuning.json"
ANSWERS = "answers.json"
ALL = (MODE, DEGRADED_PLAN, PROCESSES, FILES, INCIDENTS, STARTS, TUNING, ANSWERS)


def folder(state: Path, name: str = MAIN_SLOT) -> Path:
    """Folder of a slot's state."""
    return state / SLOTS / name


def make(state: Path, name: str) -> None:
    """Create the folder of a slot's state; raises OSError."""
    folder(state, name).mkdir(mode=0o750, parents=True, exist_ok=True)


def find(state: Path, file: str, name: str = MAIN_SLOT) -> Path:
    """Path of this state file.

    The only slot's file may still be where versions without slots kept it: such a daemon ran last,
    or moving failed.
    """
    current, former = folder(state, name) / file, state / file
    return former if name == MAIN_SLOT and os.path.lexists(former) else current


def take_over(state: Path) -> Iterator[str]:
    """Move the files of a version without slots to the only slot; yield a message for each.

    Each move is a single rename, so that the file is in one place or the other despite
    interruptions. A file that the slot already has is replaced, because the older version ran last.
    The exceptions are the ledger, whose processes may still live, and the incidents, which remain
    worth reading: both copies are kept.
    """
    current, moved = folder(state), list[str]()
    for file in filter(lambda file: os.path.lexists(state / file), ALL):
        former, target = state / file, current / file
        try:
            make(state, MAIN_SLOT)
            if file == INCIDENTS and target.is_dir() and former.is_dir():
                Incidents(target).take_over(Incidents(former))
            elif file == PROCESSES and os.path.lexists(target):
                continue  # the processes in both are ended before a start
            else:
                state_file.move(former, target)
        except OSError as problem:
            fact = f"cannot move {former} to {current}: {problem.strerror}"
            yield f"{fact}; the old path stays in use"
        else:
            moved.append(file)
    if moved:
        yield f"moved {', '.join(moved)}, written by an earlier version, from {state} to {current}"


def ledgers(state: Path, name: str) -> tuple[Path, ...]:
    """Ledgers with processes of the slot's earlier engines, its own first."""
    former = (state / PROCESSES,) if name == MAIN_SLOT else ()
    return (folder(state, name) / PROCESSES, *former)


def mark(state: Path, name: str) -> Path:
    """The path from which the name of the engine's temporary folder is derived.

    The only slot uses the path of versions without slots, so that their engines' leftover files are
    removed.
    """
    return (state if name == MAIN_SLOT else folder(state, name)) / FILES


def _is_mode(document: Any) -> bool:
    mode = document.get("mode", 0) if isinstance(document, dict) else 0
    return mode is None or (isinstance(mode, str) and mode in MODES)


def checks(healing: Healing) -> Mapping[str, Callable[[Any], bool]]:
    """The check of each file's contents, by name."""
    return {
        MODE: _is_mode,
        DEGRADED_PLAN: partial(well_formed, healing=healing),
        PROCESSES: ledger.is_ledger,
        FILES: stale_files.is_ledger,
        STARTS: lambda document: starts.from_document(document) is not None,
        TUNING: lambda document: record.from_document(document) is not None,
        ANSWERS: lambda document: first_answers(document) is not None,
    }


def set_aside(state: Path, healing: Healing) -> Iterator[str]:
    """Rename files that this version cannot use; yield a message for each."""
    for text in state_file.set_aside(state, checks(healing)):
        lost = (
            "; processes left by an earlier engine, if any, are unknown"
            if PROCESSES in text
            else ""
        )
        yield text + lost
