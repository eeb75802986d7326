"""Define a configuration key: its default, bounds and one sentence of help."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, is_dataclass
from typing import Any, get_args, get_origin

APPLIES_AT_START = "Takes effect when the daemon starts."
StringPairs = tuple[tuple[str, str], ...]
"""A frozen table of strings: ((name, value), ...) sorted by name."""


def entries_of(kind: Any) -> type | None:
    """The section of each entry, where a key's type is a frozen table of sections by name; else
    None."""
    row = get_args(kind)[:1]
    entry = get_args(row[0])[1:] if row and get_origin(row[0]) is tuple else ()
    return next((kind for kind in entry if isinstance(kind, type) and is_dataclass(kind)), None)


class ConfigError(Exception):
    """The configuration is unusable; `findings` has one sentence per reason."""

    def __init__(self, findings: Iterable[str]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(self.findings))


def key(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Iterable[str] = (),
    example: str = "",
    private: bool = False,
    once: bool = False,
    replans: bool = True,
) -> Any:
    """Define a configuration key: its default (None is "auto"), help text, inclusive bounds,
    choices.

    `example` is shown commented out if the default alone says too little. A `private` value may be
    a password: findings never repeat it. A `once` key is read when the daemon starts; a reload
    reports that it has changed. Changing a key with `replans=False` keeps the current degraded
    plan.
    """
    bounds = {"low": low, "high": high, "choices": tuple(choices), "private": private}
    uses = {"once": once, "replans": replans}
    return field(default=default, metadata={"help": help, "example": example, **uses, **bounds})
