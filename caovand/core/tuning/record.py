"""The draft tuner's memory of one model on one plan, as a value and as a document."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from caovand.core.tuning.evidence import BANDS, DEEPEST, LARGEST, Evidence, Measurements

MAX_RECORDS = 8
MAX_MOVES = 4
_MAX_TEXT = 64


@dataclass(frozen=True)
class Record:
    """`basis` identifies what the measurements are valid for; `own` is the policy's depth.

    `depth` is the one to plan with; `home` is the one to return to while another is on trial.
    `refused` are depths that failed or do not fit. `moves` are the times of the latest moves,
    `used` the time of the last change (Unix time).
    """

    basis: str
    own: int
    depth: int
    home: int
    evidence: Evidence = field(default_factory=dict)
    refused: frozenset[int] = frozenset()
    moves: tuple[float, ...] = ()
    used: float = 0.0

    @property
    def trying(self) -> bool:
        """Whether a depth is on trial."""
        return self.depth != self.home

    def with_steps(self, depth: int, band: int, more: Measurements) -> Record:
        """Add steps, at the depth that produced them."""
        seen = self.evidence.get((depth, band), Measurements()).plus(more)
        return replace(self, evidence={**self.evidence, (depth, band): seen})

    def moved(self, depth: int, at: float) -> Record:
        """Change the depth to plan with; `home` stays."""
        return replace(self, depth=depth, moves=(*self.moves, at)[-MAX_MOVES:], used=at)

    def kept(self) -> Record:
        """Make the depth on trial the new home: it was not slower."""
        return replace(self, home=self.depth)

    def failed(self, at: float) -> Record:
        """Refuse the depth on trial: it failed, and a restart returns from it."""
        return replace(self.moved(self.home, at), refused=self.refused | {self.depth})

    def unplanned(self) -> Record:
        """Refuse the depth on trial: it cannot be planned, so no restart was made for it."""
        refused = self.refused | {self.depth}
        return replace(self, depth=self.home, refused=refused, moves=self.moves[:-1])


def begin(basis: str, own: int) -> Record:
    """The record of a plan that was never tuned; `own` is its depth."""
    return Record(basis, own, own, own)


def to_document(records: Iterable[Record], failed_at: float) -> dict[str, Any]:
    """Encode the latest records and the time of the last engine failure."""
    latest = sorted(records, key=lambda record: record.used)[-MAX_RECORDS:]
    return {"failed_at": failed_at, "records": [_plain(record) for record in latest]}


def from_document(found: Any) -> tuple[dict[str, Record], float] | None:
    """Records by basis, and the time of the last failure; None if the document is invalid."""
    if not isinstance(found, dict) or not _is_count(found.get("failed_at")):
        return None
    rows = found.get("records")
    if not isinstance(rows, list) or len(rows) > MAX_RECORDS:
        return None
    records = [_record(row) for row in rows]
    if not all(records):
        return None
    return {record.basis: record for record in records if record}, float(found["failed_at"])


def _plain(record: Record) -> dict[str, Any]:
    return {
        "basis": record.basis,
        "own": record.own,
        "depth": record.depth,
        "home": record.home,
        "refused": sorted(record.refused),
        "moves": list(record.moves),
        "used": record.used,
        "evidence": [
            [depth, band, seen.steps, seen.seconds, list(seen.accepted)]
            for (depth, band), seen in record.evidence.items()
        ],
    }


def _record(row: Any) -> Record | None:
    if not isinstance(row, dict) or not isinstance(row.get("basis"), str):
        return None
    depths: list[Any] = [row.get(name) for name in ("own", "depth", "home")]
    lists: list[Any] = [row.get(name) for name in ("refused", "moves", "evidence")]
    refused, moves, evidence = lists
    fits = (
        0 < len(row["basis"]) <= _MAX_TEXT
        and all(map(_is_depth, depths))
        and isinstance(refused, list)
        and all(map(_is_depth, refused))
        and _are_counts(moves, MAX_MOVES)
        and _is_count(row.get("used"))
        and isinstance(evidence, list)
        and all(map(_is_seen, evidence))
    )
    if not fits:
        return None
    seen = {
        (e[0], e[1]): Measurements(float(e[2]), float(e[3]), tuple(map(float, e[4])))
        for e in evidence
    }
    times = tuple(map(float, moves))
    own, depth, home = depths
    return Record(
        row["basis"], own, depth, home, seen, frozenset(refused), times, float(row["used"])
    )


def _is_seen(found: Any) -> bool:
    return (
        isinstance(found, list)
        and len(found) == 5
        and _is_depth(found[0])
        and isinstance(found[1], int)
        and not isinstance(found[1], bool)
        and 0 <= found[1] < len(BANDS)
        and all(map(_is_count, found[2:4]))
        and (found[2] == 0) == (found[3] == 0)
        and _are_counts(found[4], DEEPEST)
    )


def _is_depth(found: Any) -> bool:
    return isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= DEEPEST


def _is_count(found: Any) -> bool:
    number = isinstance(found, (int, float)) and not isinstance(found, bool)
    return number and 0 <= found <= LARGEST


def _are_counts(found: Any, most: int) -> bool:
    return isinstance(found, list) and len(found) <= most and all(map(_is_count, found))
