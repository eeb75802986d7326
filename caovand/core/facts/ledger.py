"""Record an engine's processes, so that the next daemon finds them if this one is killed.

The daemon may be killed before it has seen all of them. The ledger is therefore written before the
first process starts, and contains what every process inherits, even in a new session: its output
pipe and a mark in its environment. A parent-death signal would not do: each process has to request
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from caovand.core.document import PartReader, listed, read_or_none, record, require, string, whole
from caovand.core.facts.ownership import Process

MARK = "CAOVAN_ENGINE"


class Marks(NamedTuple):
    """Marks that all processes of one engine inherit: their output pipe, and the value of MARK."""

    output: str
    variable: str


@dataclass(frozen=True)
class ProcessLedger:
    """The processes of one engine; before the first one, `session` is 0 and `start` matches
    none."""

    boot_id: str
    session: int
    start: int
    uid: int
    members: Sequence[Process]
    marks: Marks


def render(ledger: ProcessLedger) -> dict[str, Any]:
    """Encode a ledger as plain data."""
    return {**asdict(ledger), "marks": ledger.marks._asdict()}


def named_pids(
    document: Any,
    boot_id: str,
    table: Sequence[Process],
    has_mark: Callable[[Process, Marks], bool],
) -> set[int]:
    """Pids in `table` that a ledger identifies: directly, by session or by mark."""
    ledger = read_or_none(_LEDGER, document)
    if ledger is None or ledger["boot_id"] != boot_id:
        return set()
    session, start, uid = (ledger[name] for name in ("session", "start", "uid"))
    known = {(member["pid"], member["start"]) for member in ledger["members"]}
    marks = ledger.get("marks")  # none in one of an older release
    # A session's number is reused once all its processes have ended: if its leader is not ours,
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
    return read_or_none(_LEDGER, document) is not None


_COUNT = whole()
_MEMBER: PartReader[dict[str, int]] = record(
    dict, {"pid": whole(2), "start": _COUNT}, may_have_more=True
)
_MARKS = record(Marks, dict.fromkeys(Marks._fields, require(string(), bool, "is empty")))
"""An empty mark would match every process."""
_LEDGER: PartReader[dict[str, Any]] = record(dict, {
    "boot_id": string(),
    "session": require(_COUNT, lambda session: session != 1, "is init's"),
    **dict.fromkeys(("start", "uid"), _COUNT),
    "members": listed(_MEMBER),
    "marks": _MARKS,
}, may_lack=("marks",), may_have_more=True)  # fmt: skip
