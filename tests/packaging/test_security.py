"""SECURITY.md's matrices: each cell names its test, and each named test exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import takewhile

import pytest

from tests.daemon_process import ROOT

TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"(?<![\w.-])\d+(?![\w.])")
ITEM = re.compile(r"^(\d+)\. ")


def matrices() -> Iterator[tuple[list[str], dict[str, str]]]:
    """The cells of each matrix that hold an answer, and the tests below it by their numbers."""
    for part in TEXT.split("\nWho can do what to ")[1:]:
        lines = iter(part.partition("\n| ")[2].splitlines()[2:])
        rows = [line.strip("|").split("|")[1:] for line in takewhile(str.strip, lines)]
        named: dict[str, str] = {}
        for line in takewhile(str.strip, lines):
            if found := ITEM.match(line):
                named[number := found[1]] = ""
            named[number] += line
        yield [cell.strip() for row in rows for cell in row], named


def test_each_cell_of_a_matrix_names_its_tests_and_each_test_has_a_cell() -> None:
    found = list(matrices())
    assert len(found) == 2
    for cells, named in found:
        asked = [NUMBER.findall(cell) for cell in cells]
        assert [cell for cell, numbers in zip(cells, asked, strict=True) if not numbers] == []
        used = {number for numbers in asked for number in numbers}
        assert used == named.keys()


@pytest.mark.parametrize("text", [text for _, named in matrices() for text in named.values()])
def test_each_test_that_a_matrix_names_exists(text: str) -> None:
    file, *names = re.findall(r"`([^`]+)`", text)
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    made = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert names
    assert {*names} <= made
