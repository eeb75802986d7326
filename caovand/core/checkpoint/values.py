"""Typed access to values of config.json; errors name the bad key."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

MAX_VALUE = 1 << 31
NONE = -1
"""Spellings of "none" in some configurations: no window, no quantisation groups."""


class BadConfig(Exception):
    """config.json does not describe a usable model."""


def first_count(config: Mapping[str, Any], *names: str) -> int:
    """The first of these keys that is set to a count, else 0; for a list per layer, its maximum."""
    for name in names:
        value = config.get(name)
        if value is None or value == NONE:
            continue
        if isinstance(value, list) and value:
            return max(require_count(name, entry) for entry in value)
        return require_count(name, value)
    return 0


def require_count(name: str, value: Any) -> int:
    """Check that the value is a count."""
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if not whole or isinstance(value, bool) or not 0 <= value <= MAX_VALUE:
        raise BadConfig(f'"{name}" is {reprlib.repr(value)}, not a count up to {MAX_VALUE}')
    return int(value)


def table_value(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The table under this key; empty if the key is missing."""
    value = config.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise BadConfig(f'"{name}" is {reprlib.repr(value)}, not a table')
    return value or {}


def text_value(config: Mapping[str, Any], name: str) -> str:
    """The text under this key; empty if the key is missing."""
    value = config.get(name)
    if value is not None and not (isinstance(value, str) and value.isprintable()):
        raise BadConfig(f'"{name}" is {reprlib.repr(value)}, not a name')
    return value or ""
