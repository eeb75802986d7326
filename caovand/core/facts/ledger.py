"""Record an engine's processes, so that the next daemon finds them if this one is killed.

The daemon may be killed before it has seen all of them. The ledger is therefore written before the
first process starts, and contains what every process inherits, even in a session of its own: its
output pipe and a mark in its environment. A parent-death signal would not do: each process has to
request its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from caovand.core.facts.ownership import Process

MARK = "CAOVAN_ENGINE"


class Marks(NamedTuple):
    """What all processes of one engine inherit: their output pipe, and the value of MARK."""

    output: str
    variable: str


@dataclass(frozen=True)
class Ledger:
    """The processes of one engine; before the first one, `session` is 0 and `start` matches
    none."""

    boot_id: str
    session: int
    start: int
    uid: int
    members: Sequence[Process]
    marks: Marks


def render(ledger: Ledger) -> dict[str, Any]:
    """Encode a ledger as plain data."""
    return {**asdict(ledger), "marks": ledger.marks._asdict()}


def named_pids(
    document: Any,
    boot_id: str,
    table: Sequence[Process],
    has_mark: Callable[[Process, Marks], bool],
) -> set[int]:
    """Pids in `table` that a ledger identifies: directly, by session or by mark."""
    if not is_ledger(document) or document["boot_id"] != boot_id:
        return set()
    session, start, uid = (document[name] for name in ("session", "start", "uid"))
    known = {(member["pid"], member["start"]) for member in document["members"]}
    marks = Marks(**document["marks"]) if "marks" in document else None  # older releases
    # A session id is reused after all its processes have ended: if its leader is not the engine's,
    # the session belongs to a stranger.
    taken = any(process.pid == session and process.start != start for process in table)
    own_session = 0 if taken else session
    return {
        process.pid
        for process in table
        if (process.pid, process.start) in known
        or (
            process.uid == uid
            and process.start >= start
            and (
                (own_session and process.session == own_session)
                or (marks is not None and has_mark(process, marks))
            )
        )
    }


def is_ledger(document: Any) -> bool:
    """Whether this is output of `render`.

    Session 1 is init's: taking it for the engine's would kill every process. 0 stands for none.
    """
    return (
        isinstance(document, dict)
        and isinstance(document.get("boot_id"), str)
        and _are_counts(document, session=0, start=0, uid=0)
        and document["session"] != 1
        and ("marks" not in document or _are_marks(document["marks"]))
        and isinstance(document.get("members"), list)
        and all(isinstance(m, dict) and _are_counts(m, pid=2, start=0) for m in document["members"])
    )


def _are_marks(marks: Any) -> bool:
    """Whether these are valid marks; an empty one would match every process."""
    return (
        isinstance(marks, dict)
        and marks.keys() == set(Marks._fields)
        and all(isinstance(mark, str) and mark for mark in marks.values())
    )


def _are_counts(table: Mapping[str, Any], **least: int) -> bool:
    return all(type(table.get(name)) is int and table[name] >= low for name, low in least.items())
