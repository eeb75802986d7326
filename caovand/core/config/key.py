"""A key of the configuration: its default, bounds and one sentence of help."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Any

ONCE = "Takes effect when the daemon starts."


Pairs = tuple[tuple[str, str], ...]
"""A table of strings, frozen: ((name, value), ...) sorted by name."""


class ConfigError(Exception):
    """The configuration cannot be used; `findings` has one sentence for each reason."""

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
    """A configuration key: its default (None is "auto"), help text, inclusive bounds, choices.

    `example` is shown commented out where the default alone says too little. The value of a
    `private` key may be a password: findings never repeat it. A key that is read `once` counts from
    the daemon's start: a reload names it if it has changed. A change of a key that does not
    `replan` keeps the degraded plan that served.
    """
    bounds = {"low": low, "high": high, "choices": tuple(choices), "private": private}
    uses = {"once": once, "replans": replans}
    return field(default=default, metadata={"help": help, "example": example, **uses, **bounds})
