"""What is kept of a request that has ended: whose, how long, how it ended; never its text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from caovand.core.gateway.usage import Used

MAX_KEPT = 100
MAX_PATH, MAX_MODEL = 60, 80
ANSWERED, CLIENT_GONE = "", "client gone"
FIELDS: Mapping[str, tuple[type, ...]] = {
    "at": (int, float), "key": (str,), "path": (str,), "model": (str,), "status": (int,),
    "outcome": (str,), "waited_s": (int, float), "first_s": (int, float, type(None)),
    "whole_s": (int, float), "read": (int,), "written": (int,), "estimated": (bool,),
}  # fmt: skip


NOTHING = Used(0, 0, estimated=False)


@dataclass
class Record:
    """A request under way; times are monotonic except `at`.

    `outcome` is ANSWERED, or the code of the error that its client got.
    """

    at: float
    began: float
    key: str
    path: str
    model: str = ""
    status: int = 0
    outcome: str = ANSWERED
    sent: float | None = None
    """When it went to the engine that answered it."""
    first: float | None = None
    used: Used = NOTHING

    def row(self, ended: float) -> dict[str, Any]:
        """The record as the daemon keeps it."""
        until = ended if self.sent is None else self.sent
        return {
            "at": round(self.at, 3), "key": self.key, "path": self.path[:MAX_PATH],
            "model": self.model[:MAX_MODEL], "status": self.status, "outcome": self.outcome,
            "waited_s": round(until - self.began, 4),
            "first_s": None if self.first is None else round(self.first - self.began, 4),
            "whole_s": round(ended - self.began, 4), "read": self.used.read,
            "written": self.used.written, "estimated": self.used.estimated,
        }  # fmt: skip


def usable(row: Any) -> bool:
    """Whether this is a row of a record."""
    return (
        isinstance(row, dict)
        and row.keys() == FIELDS.keys()
        and all(isinstance(row[name], kinds) for name, kinds in FIELDS.items())
    )
