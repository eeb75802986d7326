"""Shared by all tests: Hypothesis profiles, one python3, one engine; every run is the same."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import HealthCheck, settings

from tests.examples import BRIEF

# Here, not where they are used: a fixture that two conftests import is made twice, and the second
# would find the cores that the first has left.
from tests.real_engine import engine, last_core  # noqa: F401  (fixtures)

everywhere = settings(
    derandomize=True,
    deadline=None,  # a busy machine is no bug
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("caovan", everywhere)
# `make test` looks for what breaks a property briefly; `make test-all` takes its time.
settings.register_profile("brief", everywhere, max_examples=BRIEF)
settings.load_profile("caovan")

# The stand-ins begin with `env python3`. Where that is a shim of pyenv, each start of one would
# cost forty processes of bash.
os.environ["PATH"] = f"{sys.base_prefix}/bin{os.pathsep}{os.environ['PATH']}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite` is for changes that are meant: the diff of the files shows what they change."""
    parser.addoption(
        "--rewrite", action="store_true", help="write expected texts anew instead of comparing them"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is exhaustive is long, too."""
    for item in items:
        if item.get_closest_marker("exhaustive"):
            item.add_marker("long")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether files with an expected text are to be written anew."""
    return bool(request.config.getoption("--rewrite"))
