"""Shared by the browser tests of the page: one Chromium, one model folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.page.browser.window import chromium
from tests.scenarios.test_supervision import make_model


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("m") / "hybrid")
