"""The record of an ended request: its key, times and outcome, but never its text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from caovand.core.gateway.usage import KeyUsage

MAX_KEPT = 100
MAX_PATH, MAX_MODEL = 60, 80
ANSWERED, CLIENT_GONE = "", "client gone"
FIELDS: Mapping[str, tuple[type, ...]] = {
    "at": (int, float), "key": (str,), "path": (str,), "model": (str,), "status": (int,),
    "outcome": (str,), "waited_s": (int, float), "first_s": (int, float, type(None)),
    "whole_s": (int, float), "read": (int,), "written": (int,), "estimated": (bool,),
    "prefix": (str,),
}  # fmt: skip


NOTHING = KeyUsage(0, 0, estimated=False)


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
    """The time at which it went to the engine that answered it."""
    first: float | None = None
    used: KeyUsage = NOTHING
    prefix: str = ""
    """The change in the conversation that made the engine read the rest again."""
    tries: int = 0
    """The number of attempts at an engine."""

    def waited_s(self, ended: float) -> float:
        """Seconds that it waited for the engine that answered it, or in vain."""
        return (ended if self.sent is None else self.sent) - self.began

    def row(self, ended: float) -> dict[str, Any]:
        """The record as the daemon stores it."""
        return {
            "at": round(self.at, 3), "key": self.key, "path": self.path[:MAX_PATH],
            "model": self.model[:MAX_MODEL], "status": self.status, "outcome": self.outcome,
            "waited_s": round(self.waited_s(ended), 4),
            "first_s": None if self.first is None else round(self.first - self.began, 4),
            "whole_s": round(ended - self.began, 4), "read": self.used.read,
            "written": self.used.written, "estimated": self.used.estimated,
            "prefix": self.prefix,
        }  # fmt: skip


@dataclass
class Totals:
    """Finished requests, by HTTP status ("0": the client disconnected first), and their waits."""

    ended: Counter[str] = field(default_factory=Counter)
    waited_s: float = 0.0
    resent: int = 0

    def add(self, record: Record, ended: float) -> None:
        """Count a request."""
        self.ended[str(record.status)] += 1
        self.waited_s += record.waited_s(ended)
        self.resent += max(record.tries - 1, 0)

    def document(self) -> dict[str, Any]:
        """The totals as JSON."""
        return {
            "ended": dict(self.ended), "waited_s": round(self.waited_s, 3), "resent": self.resent,
        }  # fmt: skip


def add_growth(total: Mapping[str, Any], before: Mapping[str, Any], now: Mapping[str, Any]) -> Any:
    """Add the growth from `before` to `now` to `total`. A gateway whose counts fell has been
    restarted: all of `now` is growth.
    """
    if sum(now["ended"].values()) < sum(before["ended"].values()):
        before = Totals().document()
    ended = Counter(total["ended"])
    ended.update({k: count - before["ended"].get(k, 0) for k, count in now["ended"].items()})
    more = {name: total[name] + now[name] - before[name] for name in ("waited_s", "resent")}
    return {"ended": dict(ended), **more}


def is_row(row: Any) -> bool:
    """Whether a value is a row made from a record."""
    return (
        isinstance(row, dict)
        and row.keys() == FIELDS.keys()
        and all(isinstance(row[name], kinds) for name, kinds in FIELDS.items())
    )
