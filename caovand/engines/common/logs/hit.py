"""Lines that may be the cause of a failure, in the order in which they were printed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from caovand.core.healing.failure import Failure, Finding
from caovand.engines.common.logs.signature import Signature

MAX_TEXT = 400  # characters kept of a line
_EXPLAINED = 20
"""The number of lines after a generic cause in which a better one may follow."""
_NEXT_FAILURES: Mapping[str, frozenset[str]] = {
    "transformers.model": frozenset(
        {"engine.transformers", "model.architecture", "sglang.model.architecture"}
    ),
}
"""By a failure that ends a start, those of the next start, once its remedy was tried: a report that
goes on with one of them is about that one."""


@dataclass(frozen=True)
class Hit:
    """A line that a row matches: its number from 0, its text, and the captured values."""

    index: int
    text: str
    phase: str
    row: Signature
    captures: Mapping[str, str]


AnyHit = TypeVar("AnyHit", bound=Hit)


def cause(hits: Sequence[Hit]) -> Finding | None:
    """The finding of the first cause among the hits; None if there are only consequences and
    wrappers."""
    causes = [hit for hit in hits if hit.row.kind in ("cause", "generic")]
    return finding(best_cause(causes)) if causes else None


def best_cause(
    causes: Sequence[AnyHit],
    explained_by: Mapping[str, Collection[str]] = {},
    near: int = _EXPLAINED,
) -> AnyHit:
    """The first cause; for a generic one, a later one that explains it, at most `near` lines on.

    `explained_by` lists the only rows that explain a row better, by its id, whatever its kind; any
    cause explains the other generic ones.
    """
    start = causes[0]
    later = after_remedy([hit.row.id for hit in causes])
    if later is not None:
        return replace(causes[later], captures={**start.captures, **causes[later].captures})
    rows = explained_by.get(start.row.id)
    if start.row.kind == "generic" or rows is not None:
        for place, hit in enumerate(causes[1:], 1):
            better = hit.row.kind == "cause" and (rows is None or hit.row.id in rows)
            if better and hit.index <= start.index + near:
                return best_cause(causes[place:], explained_by, near)
    return start


def after_remedy(causes: Sequence[str]) -> int | None:
    """The place of the cause that came after the first one's remedy was tried, by their rows."""
    later = _NEXT_FAILURES.get(causes[0], frozenset())
    return next((place for place, row in enumerate(causes) if row in later), None)


def unless_explained(hits: Sequence[Hit]) -> list[Hit]:
    """The hits without network failures, if anything but a missing model is found with them.

    A download fails for a client, and is retried; a missing model is then its result.
    """
    others = [hit for hit in hits if hit.row.failure != "network"]
    explained = any(
        hit.row.kind != "wrapper" and hit.row.failure != "model-missing" for hit in others
    )
    return others if explained else list(hits)


def line_finding(
    failure: Failure,
    line: str,
    number: int,
    phase: str,
    signature: str,
    captures: Mapping[str, str] = {},
) -> Finding:
    """The finding of a line, by its number from 1, that no row is needed for."""
    return Finding(failure, shorten(line), phase, captures, signature, number)


def explain_lost_process(text: str) -> str:
    """Add to a line about a lost process how a process can end without a message."""
    return f"{text} [a process vanished silently: killed (`kill`, OOM killer) or exited]"


def shorten(text: str, limit: int = MAX_TEXT) -> str:
    """The text of a line without the spaces around it, cut to `limit` characters."""
    text = text.strip()
    return text if len(text) <= limit else text[: limit - 3] + "..."


def finding(hit: Hit) -> Finding:
    """The finding of a line, shortened. `silent` rows report a process that vanished."""
    short = shorten(hit.text)
    if "silent" in hit.captures:
        short = explain_lost_process(short)
    return Finding(
        hit.row.means(hit.phase), short, hit.phase, hit.captures, hit.row.id, hit.index + 1
    )
