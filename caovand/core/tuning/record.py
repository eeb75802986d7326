"""The draft tuner's memory of one model on one plan, as a value and as a document."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from caovand.core.document import (
    PartReader,
    into,
    listed,
    number,
    read_or_none,
    record,
    require,
    row,
    string,
    whole,
)
from caovand.core.tuning.evidence import (
    CONTEXT_BANDS,
    DEPTHS,
    MAX_COUNT,
    MAX_MEASURED_DEPTH,
    Measurements,
    MeasurementsByBand,
)

MAX_RECORDS = 8
MAX_MOVES = 4
_MAX_TEXT = 64


@dataclass(frozen=True)
class TuningRecord:
    """`basis` identifies what the measurements are valid for; `own` is the policy's depth.

    `depth` is the one to plan with; `home` is the one to return to while another is on trial.
    `refused` are depths that failed or do not fit. `moves` are the times of the latest moves,
    `used` the time of the last change (Unix time).
    """

    basis: str
    own: int
    depth: int
    home: int
    evidence: MeasurementsByBand = field(default_factory=dict)
    refused: frozenset[int] = frozenset()
    moves: tuple[float, ...] = ()
    used: float = 0.0

    @property
    def depths(self) -> range:
        """The depths to compare: up to the policy's own, which a drafter's training sets."""
        return range(max(len(DEPTHS), self.own + 1))

    @property
    def trying(self) -> bool:
        """Whether a depth is on trial."""
        return self.depth != self.home

    def with_steps(self, depth: int, band: int, more: Measurements) -> TuningRecord:
        """Add steps, at the depth that produced them."""
        seen = self.evidence.get((depth, band), Measurements()).plus(more)
        return replace(self, evidence={**self.evidence, (depth, band): seen})

    def move(self, depth: int, at: float) -> TuningRecord:
        """Change the depth to plan with; `home` stays."""
        return replace(self, depth=depth, moves=(*self.moves, at)[-MAX_MOVES:], used=at)

    def keep(self) -> TuningRecord:
        """Make the depth on trial the new home: it was not slower."""
        return replace(self, home=self.depth)

    def failed(self, at: float) -> TuningRecord:
        """Refuse the depth on trial: it failed, and a restart returns from it."""
        return replace(self.move(self.home, at), refused=self.refused | {self.depth})

    def refuse_unplanned(self) -> TuningRecord:
        """Refuse the depth on trial: it cannot be planned, so no restart was made for it."""
        refused = self.refused | {self.depth}
        return replace(self, depth=self.home, refused=refused, moves=self.moves[:-1])


def begin(basis: str, own: int) -> TuningRecord:
    """The record of a plan that was never tuned; `own` is its depth."""
    return TuningRecord(basis, own, own, own)


def to_document(records: Iterable[TuningRecord], failed_at: float) -> dict[str, Any]:
    """Encode the latest records and the time of the last engine failure."""
    latest = sorted(records, key=lambda record: record.used)[-MAX_RECORDS:]
    return {"failed_at": failed_at, "records": [_plain(record) for record in latest]}


def from_document(document: Any) -> tuple[dict[str, TuningRecord], float] | None:
    """Records by basis, and the time of the last failure; None if the document is invalid."""
    return read_or_none(_RECORDS, document)


def _plain(record: TuningRecord) -> dict[str, Any]:
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


def _by_basis(
    failed_at: float, records: Iterable[TuningRecord]
) -> tuple[dict[str, TuningRecord], float]:
    return {record.basis: record for record in records}, float(failed_at)


_DEPTH, _BAND = whole(high=MAX_MEASURED_DEPTH), whole(high=len(CONTEXT_BANDS) - 1)
_COUNT = number(0, MAX_COUNT)
_MEASURED = require(
    row(_DEPTH, _BAND, _COUNT, _COUNT, listed(_COUNT, MAX_MEASURED_DEPTH)),
    lambda seen: (seen[2] == 0) == (seen[3] == 0),
    "has steps without seconds, or seconds without steps",
)
_EVIDENCE: PartReader[MeasurementsByBand] = into(
    lambda rows: {(depth, band): Measurements(*measured) for depth, band, *measured in rows},
    listed(_MEASURED),
)
_RECORD = record(TuningRecord, {
    "basis": require(string(_MAX_TEXT), bool, "is empty"),
    **dict.fromkeys(("own", "depth", "home"), _DEPTH),
    "refused": into(frozenset, listed(_DEPTH)),
    "moves": listed(_COUNT, MAX_MOVES),
    "used": _COUNT,
    "evidence": _EVIDENCE,
}, may_have_more=True)  # fmt: skip
_RECORDS = record(
    _by_basis, {"failed_at": _COUNT, "records": listed(_RECORD, MAX_RECORDS)}, may_have_more=True
)
