"""A real Prometheus scrapes the daemon for a minute: metrics, alerts and dashboard work."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.daemon_process import ROOT, Daemon, daemon
from tests.faults.test_standin_faults import cards
from tests.patience import until
from tests.ports import free_port
from tests.scenarios.test_supervision import configuration, model

__all__ = ["model"]  # a fixture

pytestmark = pytest.mark.long
MONITORING = ROOT / "packaging/monitoring"
UNPACKED = ROOT / ".caovan/prometheus/usr/bin"
MINUTE_S = 60.0
LINE = "(EngineCore pid=2) INFO 11-20 08:53:13 [gpu_worker.py:463]"
# What a board may ask for that is not caovan's own, or not there while no rung is in force.
OTHERS = frozenset({"up", "caovan_rung_in_force"})


def tool(name: str) -> str:
    """A program of Prometheus: the machine's, or the one that `make prometheus` brings."""
    found = shutil.which(name, path=f"{UNPACKED}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        pytest.fail(f"no {name} to test with: run `make prometheus` first", pytrace=False)
    return found


def checked(*words: str, stdin: str = "") -> str:
    """What promtool prints; it must find nothing wrong."""
    done = subprocess.run(
        [tool("promtool"), *words], input=stdin, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@dataclass(frozen=True)
class Server:
    """A Prometheus that has scraped for a minute."""

    one: Daemon
    url: str
    metrics: str

    def get(self, path: str, **query: str) -> Any:
        """The data of an answer of its API."""
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                document = json.load(answer)
        except urllib.error.HTTPError as problem:
            pytest.fail(f"{query}: {problem.read().decode()}")
        assert document["status"] == "success"
        return document["data"]

    def query(self, expression: str) -> list[Any]:
        """What an expression gives now."""
        return list(self.get("query", query=expression)["result"])


def text_of(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def complete(port: int) -> None:
    body = json.dumps({"model": "hybrid", "prompt": [1], "max_tokens": 20}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body)
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="caovan-monitoring-"))
    listens, serves = free_port(), free_port()
    sizes = {"load": f"{LINE} Model loading took 0.02 GiB memory and 1.0 seconds",
             "kv": f"{LINE} Available KV cache memory: 2.00 GiB"}  # fmt: skip
    config = configuration(
        model, {"at": sizes}, metrics=f'listen = "127.0.0.1:{listens}"', watch="gpu_sample_s = 1"
    )
    alerts = (MONITORING / "alerts.yml").read_text()
    (folder / "alerts.yml").write_text(re.sub(r"for: \w+", "for: 5s", alerts))
    jobs = [{"job_name": "caovan", "static_configs": [{"targets": [f"127.0.0.1:{listens}"]}]}]
    often = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    scraped = {"global": often, "scrape_configs": jobs, "rule_files": ["alerts.yml"]}
    (folder / "prometheus.yml").write_text(json.dumps(scraped))  # which is YAML too
    checked("check", "config", str(folder / "prometheus.yml"))
    try:
        environ = cards(folder, of="VLLM::EngineCor")
        with daemon(config, environ) as one:
            port = int(one.until_state("SERVING")["served"]["port"])
            with subprocess.Popen(
                [
                    tool("prometheus"), f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{serves}", "--log.level=warn",
                ],
            ) as process:  # fmt: skip
                try:
                    ends = time.monotonic() + MINUTE_S

                    def complete_for_a_minute() -> bool:
                        complete(port)
                        return time.monotonic() > ends

                    until(complete_for_a_minute, "the end of a minute", every_s=0.5)
                    found = Server(one, f"http://127.0.0.1:{serves}", "")
                    metrics = text_of(f"http://127.0.0.1:{listens}/metrics")
                    until(lambda: found.query("up"), "an answer of Prometheus")
                    yield Server(one, found.url, metrics)
                finally:
                    process.terminate()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_promtool_finds_nothing_wrong_with_names_units_and_help(server: Server) -> None:
    assert checked("check", "metrics", stdin=server.metrics) == ""


def test_every_scrape_succeeded_and_has_the_labels_that_are_promised(server: Server) -> None:
    (target,) = server.get("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    assert server.query("count_over_time(up[2m])")[0]["value"][1] > "30"
    for series in server.query('{__name__=~"caovan_.*"}'):
        labels = series["metric"].keys() - {"__name__", "instance", "job"}
        name = series["metric"]["__name__"]
        if name.startswith("caovan_gpu_"):
            assert "gpu" in labels, name
        elif name != "caovan_build_info":
            assert {"slot", "model"} <= labels, name


def test_the_engine_s_own_numbers_are_those_of_prometheus(server: Server) -> None:
    rate = float(server.query("sum(rate(caovan_requests_total[40s]))")[0]["value"][1])
    assert 0.5 < rate < 2.5, "two completions a second were sent, less what they took"
    tokens = float(server.query("sum(rate(caovan_generation_tokens_total[40s]))")[0]["value"][1])
    assert tokens == pytest.approx(20 * rate, rel=0.02)
    quantile = "histogram_quantile(0.5, sum by (le) (rate({}_bucket[40s])))"
    found = server.query(quantile.format("caovan_time_to_first_token_seconds"))
    assert float(found[0]["value"][1]) == pytest.approx(0.055, abs=0.001)  # between 0.01 and 0.1
    figures = server.one.status()["figures"]
    assert figures["first_token_s"]["p50"] == pytest.approx(0.055, abs=0.001)
    joules = server.query("rate(caovan_gpu_energy_joules_total[40s])")
    assert len(joules) == 2
    assert all(float(one["value"][1]) == pytest.approx(180, rel=0.1) for one in joules)


def alerts() -> list[str]:
    """The expressions of the alerts, in the order of the file."""
    text = (MONITORING / "alerts.yml").read_text()
    found = re.findall(r"^        expr: (.*?)\n        (?:for|labels)", text, re.M | re.S)
    return [re.sub(r"\s+", " ", one.removeprefix(">-")).strip() for one in found]


def board() -> list[tuple[str, str]]:
    """The title and the expression of each query of the board, its variables filled in."""
    document = json.loads((MONITORING / "grafana.json").read_text())
    found = []
    for panel in document["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for name, value in (("$__rate_interval", "40s"), ("$instance", ".*"), ("$slot", ".*")):
                expression = expression.replace(name, value)
            found.append((f"{panel['title']} {target['refId']}", expression))
    return found


def test_the_alerts_are_rules_and_each_asks_for_metrics_that_are_there(server: Server) -> None:
    said = checked("check", "rules", str(MONITORING / "alerts.yml"))
    assert "SUCCESS" in said
    groups = server.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(alerts()) > 10
    assert [rule["lastError"] for rule in rules if rule.get("lastError")] == []
    assert {rule["health"] for rule in rules} == {"ok"}
    for expression in alerts():
        server.query(expression)
    firing = {rule["name"] for rule in rules if rule["alerts"]}
    assert firing == {"CaovanForecastOff"}, "the engine made up what it reports of its memory"


@pytest.mark.parametrize(("title", "expression"), board(), ids=lambda text: text[:40])
def test_each_query_of_the_board_shows_something(
    server: Server, title: str, expression: str
) -> None:
    found = until(lambda: server.query(expression), f"{title}: {expression}")
    assert all(one["value"][1] != "NaN" for one in found), title


def test_board_and_alerts_name_no_metric_that_does_not_exist(server: Server) -> None:
    known = {*server.get("label/__name__/values"), *OTHERS}
    for expression in (*alerts(), *(expression for _, expression in board())):
        asked = set(re.findall(r"\bcaovan_\w+|\bup\b", expression))
        assert asked <= known, expression


def test_a_stopped_machine_alerts_and_a_stopped_engine_does_not(server: Server) -> None:
    """Last: the engine does not come back."""
    assert server.one.ctl("stop").returncode == 0

    def names() -> set[str]:
        found = server.get("alerts")["alerts"]
        firing = {one["labels"]["alertname"] for one in found if one["state"] == "firing"}
        return firing - {"CaovanForecastOff"}

    until(lambda: server.query('caovan_state{state="STOPPED"} == 1'), "STOPPED is scraped")
    until(lambda: server.query("caovan_engine_up") and not names(), "nobody is alerted")
    server.one.stop()
    until(lambda: names() == {"CaovanUnreachable"}, "an alert that it does not answer")
