"""Format an answer in lines for people: for `caovanctl explain` and incident reports.

The input is the document form, `asdict(Answer)`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_SURE = {
    "certain": "certain",
    "likely": "likely",
    "effect": "the effect is certain, its cause is not known",
    "unknown": "not known",
}
_HEALS = {"yes": "yes", "waits": "it waits", "no": "no", "depends": "it depends"}


def evidence(answer: Mapping[str, Any]) -> Iterator[str]:
    """The certainty of the cause, and why this line counts."""
    yield f"  how sure  {_SURE[answer['certainty']]}"
    yield f"  why       {answer['why']}"


def remedy(answer: Mapping[str, Any]) -> Iterator[str]:
    """List the change to make, what caovan does by itself, and similar public reports."""
    yield from _list("change", [_setting(change) for change in answer["changes"]])
    yield f"  by itself {_HEALS[answer['heals']]}: {answer['how']}"
    yield from _list("resembles", [_linked(report) for report in answer["resembles"]])


def _list(label: str, entries: Sequence[str]) -> Iterator[str]:
    for place, entry in enumerate(entries):
        yield f"  {'' if place else label:<9} {entry}"


def _setting(change: Mapping[str, Any]) -> str:
    option, value = change["option"], change["value"]
    shown = value if isinstance(value, str) else json.dumps(value)
    key = f"{change['key']} in caovan.toml, " if change["key"] else ""
    if value is None:
        option = f"without {option}"
    elif value is not True or not option.startswith("--"):  # a flag has no value
        option = f"{option} {shown}"
    return f"{change['does']}: {key}{option}"


def _linked(report: str) -> str:
    repository, _, number = report.partition("#")
    return f"{report}, https://github.com/{repository}/issues/{number}"
