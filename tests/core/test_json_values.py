"""A number of a JSON document is finite, within its bounds, and neither true nor false."""

from __future__ import annotations

import math
from typing import Any

import pytest

from caovand.core.json_values import is_number, is_whole


@pytest.mark.parametrize(
    ("value", "number", "whole"),
    [
        (0, True, True),
        (-7, True, True),
        (1.5, True, False),
        (2.0, True, False),
        (True, False, False),
        (math.nan, False, False),
        (-math.inf, False, False),
        (10**400, False, False),
        ("1", False, False),
        (None, False, False),
        ([1], False, False),
    ],
)
def test_what_is_a_number(value: Any, number: bool, whole: bool) -> None:
    assert (is_number(value), is_whole(value)) == (number, whole)


def test_the_bounds_are_numbers_too() -> None:
    assert [is_number(value, 0, 8) for value in (-0.1, 0, 8, 8.1)] == [False, True, True, False]
    assert [is_whole(value, 1, 8) for value in (0, 1, 8, 9)] == [False, True, True, False]
