"""The memory forecast beside what a real vLLM reported of itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.daemon_process import daemon, free_port
from tests.e2e.conftest import configuration

pytestmark = [pytest.mark.engine, pytest.mark.long]


@pytest.mark.parametrize(
    ("model", "policy"),
    [("dense", ""), ("hybrid", ""), ("hybrid", "mtp = 0"), ("hybrid_copy", 'mode = "fast"')],
)
def test_the_forecast_cache_is_the_one_that_vllm_reports(
    engine: Path, model: str, policy: str
) -> None:
    config = configuration(engine, model, free_port(), f"[policy]\n{policy}")
    with daemon(config) as one:
        one.until_state("SERVING")
        reported = one.status()["reported"]
        planned = one.ctl("plan", "--config", str(one.config_path), "--json")
        forecast = json.loads(planned.stdout)["memory"]
        assert forecast["kv_tokens"] == reported["kv_tokens"]
        assert one.stop() == 0
