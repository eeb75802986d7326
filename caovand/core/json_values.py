"""What a value of a JSON document is: Python reads true and false as numbers, and NaN too."""

from __future__ import annotations

from typing import Any

MAX = 1e308
"""About the largest float: integers of JSON have no limit."""


def is_number(value: Any, low: float = -MAX, high: float = MAX) -> bool:
    """Whether the value is a finite number within these bounds."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and low <= value <= high


def is_whole(value: Any, low: float = -MAX, high: float = MAX) -> bool:
    """Whether the value is an integer within these bounds."""
    return isinstance(value, int) and is_number(value, low, high)
