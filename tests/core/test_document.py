"""A reader returns what a document holds, or refuses it by the part that is wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given

from caovand.core import document
from caovand.core.document import (
    BadDocument,
    PartReader,
    anything,
    flag,
    into,
    is_number,
    is_whole,
    listed,
    number,
    one_of,
    optional,
    read_or_none,
    record,
    require,
    row,
    string,
    table,
    whole,
)
from caovand.core.printable import one_line
from tests.core.test_any_input import JSON
from tests.examples import examples


@dataclass(frozen=True)
class Part:
    name: str
    size: int = 0


PART: PartReader[Part] = record(Part, {"name": string(4), "size": whole(0, 9)}, may_lack=("size",))
WHOLE: PartReader[dict[str, Any]] = record(
    dict,
    {
        "parts": listed(PART, 2, 1),
        "point": row(number(0, 1), flag),
        "named": table(one_of(("a", "b")), 2, string(3)),
        "even": optional(require(whole(), lambda size: size % 2 == 0, "is odd")),
        "letters": into(frozenset, listed(string(1))),
        "any": anything,
    },
)
WHOLE_NUMBER = "is not a whole number from 0 to 9"
DOCUMENT: dict[str, Any] = {
    "parts": [{"name": "x"}, {"name": "y", "size": 9}],
    "point": [0.5, True],
    "named": {"one": "a"},
    "even": None,
    "letters": ["z"],
    "any": [{}],
}


def test_a_document_is_read_as_the_types_it_stands_for() -> None:
    assert WHOLE(DOCUMENT, "") == {
        "parts": (Part("x"), Part("y", 9)),
        "point": (0.5, True),
        "named": {"one": "a"},
        "even": None,
        "letters": frozenset("z"),
        "any": [{}],
    }


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"parts": []}, "parts is not a list of 1 to 2 entries"),
        ({"parts": [1, 2, 3]}, "parts is not a list of 1 to 2 entries"),
        ({"parts": [{"size": 1}]}, "parts[0].name is missing"),
        ({"parts": [{"name": "x", "uuid": 1}]}, "parts[0].uuid is unknown"),
        ({"parts": [{"name": "abcde"}]}, "parts[0].name is not a string of at most 4 characters"),
        ({"parts": [{"name": b"x"}]}, "parts[0].name is not a string of at most 4 characters"),
        (
            {"parts": [{"name": "x", "size": True}]},
            "parts[0].size is not a whole number from 0 to 9",
        ),
        (
            {"parts": [{"name": "x", "size": 5.0}]},
            "parts[0].size is not a whole number from 0 to 9",
        ),
        ({"parts": [{"name": "x", "size": 10}]}, f"parts[0].size {WHOLE_NUMBER}"),
        ({"parts": ["x"]}, "parts[0] is not a table"),
        ({"point": [0.5]}, "point is not a list of 2 values"),
        ({"point": [float("nan"), True]}, "point[0] is not a number from 0 to 1"),
        ({"point": [float("inf"), True]}, "point[0] is not a number from 0 to 1"),
        ({"point": [10**400, True]}, "point[0] is not a number from 0 to 1"),
        ({"point": [True, True]}, "point[0] is not a number from 0 to 1"),
        ({"point": [0, 1]}, "point[1] is neither true nor false"),
        ({"named": {"one": []}}, "named.one is not one of a, b"),
        ({"named": {"\x1b[2J": "a"}}, "a name in named is not a string of at most 3 characters"),
        ({"named": {"1": "a", "2": "a", "3": "a"}}, "named is not a table of at most 2 entries"),
        ({"named": ["a"]}, "named is not a table of at most 2 entries"),
        ({"even": 3}, "even is odd"),
        ({"letters": "z"}, "letters is not a list"),
        ({"\x1b]0;" + "x" * 99: 1}, "\\x1b]0;" + "x" * 60 + " is unknown"),
        ({5: 1}, "a key is unknown"),
    ],
)
def test_a_refusal_names_the_part_and_what_is_wrong_with_it(
    change: dict[Any, Any], text: str
) -> None:
    with pytest.raises(BadDocument) as refused:
        WHOLE({**DOCUMENT, **change}, "")
    assert str(refused.value) == text


@pytest.mark.parametrize("name", sorted(DOCUMENT))
def test_nothing_may_be_missing(name: str) -> None:
    lacking = {key: value for key, value in DOCUMENT.items() if key != name}
    with pytest.raises(BadDocument, match=f"^{name} is missing$"):
        WHOLE(lacking, "")


def test_a_file_may_have_fields_of_a_later_release() -> None:
    reader = record(Part, {"name": string()}, may_have_more=True)
    assert reader({"name": "x", "later": 1}, "") == Part("x")


def test_a_number_without_bounds_of_its_own_is_one_that_a_float_holds() -> None:
    for reader in (number(), whole(-document.MAX_NUMBER)):
        assert reader(-document.MAX_NUMBER, "") == -document.MAX_NUMBER
        assert read_or_none(reader, document.MAX_NUMBER + 1) is None


@examples(300)
@given(JSON)
def test_any_document_is_read_or_refused(whatever: Any) -> None:
    for reader in (WHOLE, PART, listed(PART), table(PART), optional(row(PART))):
        refusal = ""
        try:
            reader(whatever, "")
        except BadDocument as refused:
            refusal = str(refused)
        assert one_line(refusal) == refusal


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
