"""The fault matrix: each test adds a row, and the table is printed after all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, cast

import pytest

from tests.faults.seen import Row, table
from tests.scenarios.test_supervision import model  # noqa: F401  (a fixture)

ROWS: list[Row] = []


@pytest.fixture
def row(request: pytest.FixtureRequest) -> Callable[[str, str], Row]:
    """Begins the row of a test."""

    def begin(fault: str, kind: str) -> Row:
        request.node.fault_row = Row(fault, kind)
        return cast(Row, request.node.fault_row)

    return begin


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Send the row with the test's report: that comes back from another process, too."""
    outcome = yield
    begun, report = getattr(item, "fault_row", None), outcome.get_result()
    if begun is not None and call.when == "call":
        begun.passed = report.passed
        report.user_properties.append(("fault", asdict(begun)))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Take the row of a test that is over."""
    told = dict(report.user_properties)
    if report.when == "call" and "fault" in told:
        ROWS.append(Row(**cast("dict[str, Any]", told["fault"])))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the matrix."""
    if ROWS:
        terminalreporter.section("fault matrix")
        for line in table(ROWS):
            terminalreporter.write_line(line)
