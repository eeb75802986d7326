"""Setting the clock to any moment ends nothing."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import pytest

import caovand
from caovand.adapters.system import wall_clock
from tests.source_trees import nodes, offenders

PACKAGE = Path(caovand.__file__).parent
OF_THE_DAEMON = {
    str(file.relative_to(PACKAGE)): file
    for folder in ("adapters", "core", "daemon", "engines", "page")
    for file in sorted((PACKAGE / folder).rglob("*.py"))
}


def test_a_clock_behind_the_year_2262_has_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert abs(wall_clock.now() - time.time()) < 60

    def too_late() -> float:
        raise OverflowError("timestamp too large to convert to C _PyTime_t")

    monkeypatch.setattr(time, "time", too_late)
    assert wall_clock.now() == wall_clock.MAX_TIME
    assert time.gmtime(wall_clock.now()).tm_year == 2262


def test_whatever_the_daemon_runs_asks_for_the_time_where_it_cannot_fail() -> None:
    def asked(name: str) -> list[str]:
        return [
            ast.unparse(node)
            for node in nodes(OF_THE_DAEMON[name])
            if isinstance(node, ast.Attribute)
            and node.attr in ("time", "time_ns")
            and ast.unparse(node.value) == "time"
        ]

    assert offenders(OF_THE_DAEMON, asked) == {"adapters/system/wall_clock.py": ["time.time"]}
