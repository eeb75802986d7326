"""The memory forecast beside what a real vLLM reported of itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.daemon_process import daemon, free_port
from tests.e2e.conftest import configuration

pytestmark = [pytest.mark.engine, pytest.mark.long]


def test_the_forecast_cache_is_the_one_that_vllm_reports(engine: Path) -> None:
    """Of a hybrid that does not draft; other tests have others serve, and compare as well."""
    config = configuration(engine, "hybrid", free_port(), "[policy]\nmtp = 0")
    with daemon(config) as one:
        one.until_state("SERVING")
        reported = one.status()["reported"]
        planned = one.ctl("plan", "--config", str(one.config_path), "--json")
        forecast = json.loads(planned.stdout)["memory"]
        assert forecast["kv_tokens"] == reported["kv_tokens"]
        assert one.stop() == 0
