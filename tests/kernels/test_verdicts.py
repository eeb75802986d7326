"""Which turns from a prefix cache the oracle calls wrong (csrc/bench/verdicts.py)."""

from __future__ import annotations

import importlib.util
import math
import sys
from types import ModuleType

import pytest

from tests.daemon_process import ROOT


def load(name: str) -> ModuleType:
    """A module of csrc/bench, which is not a package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"csrc/bench/{name}.py")
    assert spec
    assert spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


verdicts = load("verdicts")


@pytest.fixture
def doubt():
    """A repeated turn of 1,505 tokens that is 0.49 away, and what it was measured to be alone."""

    def made(distance: float = 0.49, **alone: object):
        return verdicts.Doubt("1 at a time", "repeat", 1505, 1504, 0, distance, **alone)

    return made


def test_a_turn_is_doubtful_from_its_first_place_beyond_the_bound() -> None:
    assert verdicts.beyond([0.01, 0.02], 0.02) is None
    assert verdicts.beyond([0.01, 0.02, 0.03, 0.01], 0.02) == 2
    assert verdicts.beyond([0.01, math.nan], 0.02) == 1
    assert verdicts.beyond([0.01], math.nan) == 0


def test_nothing_hides_a_number_that_is_none() -> None:
    assert verdicts.farthest([0.1, 0.3, 0.2]) == 0.3
    for order in ([math.nan, 0.1], [0.1, math.nan]):
        assert math.isnan(verdicts.farthest(order))


def test_in_a_cache_of_16_bits_a_doubtful_turn_is_wrong(doubt) -> None:
    assert doubt(0.016).wrong


@pytest.mark.parametrize(
    ("distance", "alone", "disturbed", "wrong"),
    [
        (0.05, 0.0156, (0.03, 0.06), False),
        (0.05, 0.06, (0.03, 0.02), False),
        (0.05, 0.0156, (0.03, 0.05), False),
        (0.49, 0.0156, (0.03, 0.06), True),
        (math.nan, 0.0156, (0.03, 0.06), True),
        (0.05, math.nan, (0.03, 0.06), True),
        (0.05, 0.0156, (0.03, math.nan), True),
    ],
)
def test_in_a_packed_cache_it_is_wrong_if_it_is_farther_than_rounding_moves_it_alone(
    doubt, distance: float, alone: float, disturbed: tuple[float, ...], wrong: bool
) -> None:
    assert doubt(distance, alone=alone, disturbed=disturbed).wrong is wrong


def test_a_row_has_all_that_decides(doubt) -> None:
    columns = verdicts.TABLE.splitlines()[0].count("|")
    assert doubt().row() == "| 1 at a time | repeat | 1505 | 1504 | 0 | 0.4900 | - | - | wrong |"
    right = doubt(0.05, alone=0.0156, disturbed=(0.03, 0.06)).row()
    assert right.endswith("| 0.0500 | 0.0156 | 0.0300 0.0600 | right |")
    assert doubt().row().count("|") == right.count("|") == columns
