"""The order of the tests on several workers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tests.conftest import pytest_collection_modifyitems

COLLECTED = (
    "tests/core/test_gguf.py::test_a", "tests/faults/test_standin_faults.py::test_b",
    "tests/page/test_server.py::test_c", "tests/scenarios/test_soak.py::test_d",
    "tests/scenarios/test_top.py::test_e",
)  # fmt: skip


def ordered(config: SimpleNamespace) -> list[int]:
    """The places in COLLECTED, in the order in which the tests run."""
    items = [SimpleNamespace(nodeid=name, get_closest_marker={}.get) for name in COLLECTED]
    pytest_collection_modifyitems(cast(Any, config), cast(Any, items))
    return [COLLECTED.index(item.nodeid) for item in items]


def test_workers_begin_with_the_tests_that_wait_for_daemons() -> None:
    assert ordered(SimpleNamespace(workerinput={})) == [1, 3, 4, 0, 2]


def test_without_workers_tests_run_as_they_are_named() -> None:
    assert ordered(SimpleNamespace()) == [0, 1, 2, 3, 4]
