"""Shared by all tests: deterministic Hypothesis profiles, a direct python3, engine fixtures."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import HealthCheck, settings

from tests.examples import BRIEF

# Imported here, not where they are used: pytest would create a fixture that two conftests import
# twice, and the second one would see only the cores left over by the first.
from tests.real_engine import engine, last_core  # noqa: F401  (fixtures)

everywhere = settings(
    derandomize=True,
    deadline=None,  # a busy machine is not a bug
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("caovan", everywhere)
# `make test` searches briefly for counterexamples; `make test-all` searches longer.
settings.register_profile("brief", everywhere, max_examples=BRIEF)
settings.load_profile("caovan")

# The stand-ins start with `env python3`. If that is a pyenv shim, each start runs forty bash
# processes.
os.environ["PATH"] = f"{sys.base_prefix}/bin{os.pathsep}{os.environ['PATH']}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--rewrite`, for intended changes: the diff of the expected files shows their effect."""
    parser.addoption(
        "--rewrite", action="store_true", help="write expected texts anew instead of comparing them"
    )


# Tests of whole daemons mostly wait for them. Each worker of pytest-xdist gets a share of the
# list, and who is done takes from the end of another's: the first worker waits for daemons while
# the others compute. As the last ones all workers would wait, and no core compute.
WAITING = ("tests/scenarios/", "tests/faults/")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Exhaustive tests also take long, so mark them as slow; workers begin with those that wait."""
    for item in items:
        if item.get_closest_marker("exhaustive"):
            item.add_marker("long")
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(WAITING))


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether to rewrite the files with expected output."""
    return bool(request.config.getoption("--rewrite"))
