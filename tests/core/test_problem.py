"""A problem is one sentence for people, and keeps its parts for separate display."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.adapters.engine_install.errors import EngineError
from caovand.core.problem import Problem, reason_of
from tests.test_architecture import MODULES

# They still find a remedy by cutting a sentence apart, or let Problem.stated cut it; each becomes
# a Problem.
STILL_CUT = {
    "caovand.core.problem": 1,
    "caovand.cli.doctor.own_machine": 1,
    "caovand.core.doctor.checks": 1,
}


def test_it_reads_as_one_sentence() -> None:
    one = Problem("install x", "the disk is full", "make room")
    assert str(one) == "cannot install x: the disk is full; make room"
    assert one.message == "cannot install x: the disk is full"
    assert str(Problem("", "the driver is old", "install another")) == (
        "the driver is old; install another"
    )


@given(st.text(min_size=1), st.text(min_size=1), st.text(min_size=1))
def test_its_parts_stay_apart_whatever_is_in_them(cannot: str, fact: str, remedy: str) -> None:
    """A name with "; " in it moved the border between fact and remedy."""
    error = EngineError(cannot, fact, remedy)
    assert error.problem == Problem(cannot, fact, remedy)
    assert str(error) == f"{error.problem.message}; {remedy}"


def cuts(path: Path) -> int:
    """How often a module cuts a text at "; ", or has Problem.stated do it."""
    return sum(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (
            node.func.attr == "stated"
            or (
                node.func.attr in ("partition", "rpartition", "split", "rsplit")
                and any(isinstance(arg, ast.Constant) and arg.value == "; " for arg in node.args)
            )
        )
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )


@pytest.mark.parametrize("name", sorted(MODULES))
def test_no_remedy_is_found_by_cutting_a_sentence_apart(name: str) -> None:
    assert cuts(MODULES[name]) <= STILL_CUT.get(name, 0), "use caovand.core.problem"


def test_the_reason_of_an_error_has_no_path() -> None:
    assert reason_of(OSError(2, "No such file or directory", "/srv/m")) == (
        "No such file or directory"
    )
    assert reason_of(ValueError("no number")) == "no number"
