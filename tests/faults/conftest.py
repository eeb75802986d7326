"""The fault matrix: each test adds a row, and the table is printed after all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.conftest import engine  # noqa: F401  (a fixture)
from tests.faults.seen import Row, table
from tests.scenarios.test_supervision import model  # noqa: F401  (a fixture)

ROWS: list[Row] = []


@pytest.fixture
def row(request: pytest.FixtureRequest) -> Callable[[str, str], Row]:
    """Begins the row of a test."""

    def begin(fault: str, kind: str) -> Row:
        ROWS.append(Row(fault, kind))
        request.node.fault_row = ROWS[-1]
        return ROWS[-1]

    return begin


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Note in the row whether its test passed."""
    outcome = yield
    begun = getattr(item, "fault_row", None)
    if begun is not None and call.when == "call":
        begun.passed = outcome.get_result().passed


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the matrix."""
    if ROWS:
        terminalreporter.section("fault matrix")
        for line in table(ROWS):
            terminalreporter.write_line(line)
