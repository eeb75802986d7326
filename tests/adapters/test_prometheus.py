"""The daemon's metrics, as a scraper gets them."""

from __future__ import annotations

import urllib.request

from caovand.adapters import prometheus
from tests.cli.fake_daemon import status
from tests.daemon import free_port


def test_a_scrape_tells_state_restarts_failures_and_cards() -> None:
    card = {"index": 1, "used_mib": 2, "temperature": 80, "throttled": "heat"}
    told = status(restarts=2, rungs=["mtp 2"], failed={"hang": 3}, gpus=[card])
    listen = f"127.0.0.1:{free_port()}"
    prometheus.serve(listen, lambda: told)
    with urllib.request.urlopen(f"http://{listen}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    for line in (
        'caovan_state{state="SERVING"} 1.0',
        'caovan_state{state="HOLD"} 0.0',
        "caovan_engine_up 1.0",
        "caovan_mtp_depth 3.0",
        "caovan_degraded 1.0",
        "caovan_restarts_total 2.0",
        'caovan_failures_total{failure="hang"} 3.0',
        'caovan_failures_total{failure="gpu-lost"} 0.0',
        'caovan_gpu_used_bytes{gpu="1"} 2.097152e+06',
        'caovan_gpu_throttled{gpu="1"} 1.0',
    ):
        assert line in lines
