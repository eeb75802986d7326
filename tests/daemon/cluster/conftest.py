"""The environment of tests of cluster roles."""

from __future__ import annotations

import pytest

from tests.daemon.cluster.made_up import World


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)
