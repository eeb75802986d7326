"""caovand over a real vLLM: three boots, one of them long, and what must be true after each."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.request
from bisect import bisect_right
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters import processes
from tests.daemon_process import Daemon, daemon, free_port
from tests.e2e.conftest import configuration
from tests.e2e.screens import Screens
from tests.patience import until

pytestmark = pytest.mark.engine
REQUEST_S = 120
MOST_TOKENS = 40_000


@dataclass(frozen=True)
class Server:
    """A daemon that serves the tiny hybrid model."""

    daemon: Daemon
    port: int

    def get(self, path: str) -> str:
        """What the engine answers."""
        address = f"http://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(address, timeout=REQUEST_S) as answer:
            return str(answer.read().decode())

    def chat(self, words: int, **more: object) -> dict[str, object]:
        """A chat completion as a client would ask for it."""
        with self._asked(words, **more) as answer:
            return dict(json.loads(answer.read()))

    def streamed(self, words: int, before: int) -> list[tuple[float, int]]:
        """When each piece of a chat completion came, and how many tokens `before` grew to."""
        options = {"include_usage": True, "continuous_usage_stats": True}
        pieces = []
        with self._asked(words, stream=True, stream_options=options) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    usage = json.loads(line[6:])["usage"]
                    pieces.append((time.monotonic(), before + usage["completion_tokens"]))
        return pieces

    def _asked(self, words: int, **more: object) -> Any:
        body = {
            "model": "tiny", "max_tokens": words, "ignore_eos": True, "temperature": 0,
            "messages": [{"role": "user", "content": "hello"}], **more,
        }  # fmt: skip
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        return urllib.request.urlopen(request, timeout=REQUEST_S)

    def inspected(self) -> dict[Path, int]:
        """When vLLM wrote down what it found out about each class of models."""
        found = self.daemon.folder.glob("cache/modelinfos/*/*.json")
        return {path: path.stat().st_mtime_ns for path in found}

    def counter(self, name: str) -> float:
        """The sum of a counter in vLLM's own metrics."""
        rows = re.findall(rf"^{re.escape(name)}{{.*}} (\S+)$", self.get("/metrics"), re.M)
        return sum(map(float, rows))

    def forecast_is_reported(self) -> bool:
        """Whether the forecast cache is the one that vLLM reports."""
        tokens = self.daemon.status()["forecast"]["kv_tokens"]
        return bool(tokens["forecast"] == tokens["reported"])

    def alive(self, pids: set[int]) -> set[int]:
        """Which of these processes still live."""
        return pids & {p.pid for p in processes.every() if not p.zombie}


@pytest.fixture(scope="module")
def server(engine: Path) -> Iterator[Server]:
    """The first boot. `caovanctl top` is open from before it to the end."""
    port = free_port()
    with daemon(configuration(engine, "hybrid_copy", port)) as one:
        screens = Screens(one)
        one.until_state("SERVING")
        yield Server(one, port)
        tree = {p.pid for p in one.tree()}
        assert one.ctl("stop").returncode == 0
        screens.close("STOPPED")
        assert one.stop() == 0
        assert not tree & {p.pid for p in processes.every() if not p.zombie}
        assert screens.disagreement() == ""


def test_it_serves_completions_with_mtp_3_and_says_what_vllm_reported(server: Server) -> None:
    answer = server.chat(24)
    assert answer["usage"]["completion_tokens"] == 24  # type: ignore[index]
    drafts = server.counter("vllm:spec_decode_num_drafts_total")
    assert server.counter("vllm:spec_decode_num_draft_tokens_total") == 3 * drafts > 0
    status = server.daemon.status()
    assert (status["state"], status["mtp"], status["mode"]) == ("SERVING", 3, "auto")
    assert status["reported"]["version"] == "0.32.0"
    assert status["reported"]["kv_tokens"] > 2048
    assert server.forecast_is_reported()
    assert server.daemon.ctl("status").returncode == 0


@pytest.mark.long
def test_the_tokens_a_second_are_those_that_a_client_measures(server: Server) -> None:
    """One request after another, until caovan has counted twice within them.

    Client and caovan are compared over the same seconds: the engine is not equally fast in others.
    """
    before = server.daemon.status()["figures"]["totals"]
    client = [(time.monotonic(), 0)]
    begins: list[float] = []
    while len(begins) < 2 and client[-1][1] < MOST_TOKENS:
        client += server.streamed(400, client[-1][1])
        at = time.monotonic()
        figures = server.daemon.status()["figures"]
        if figures["interval_s"] is None:
            continue  # it has not counted twice yet
        end = at - figures["age_s"]
        begin = end - figures["interval_s"]
        if client[0][0] < begin < end and (not begins or begin > begins[-1] + 1):
            begins.append(begin)
            measured = (counted(client, end) - counted(client, begin)) / (end - begin)
            assert figures["per_s"]["generation_tokens"] == pytest.approx(measured, rel=0.15)
    assert len(begins) == 2, "caovan counted too rarely"
    tokens, (at, _) = client[-1][1], client[0]
    figures = until(lambda: all_counted(server, before, tokens), "the last tokens are counted")
    assert figures["drafting"]["accepted"][0] > 0
    assert len(figures["drafting"]["accepted"]) == 3
    assert 0 < figures["first_token_s"]["p50"] <= figures["first_token_s"]["p99"]
    mean = (client[-1][0] - at) / tokens
    assert figures["token_s"]["mean"] == pytest.approx(mean, rel=0.3), "one request at a time"
    assert "tokens/s" in server.daemon.ctl("status").stdout


def counted(client: list[tuple[float, int]], at: float) -> float:
    """How many tokens the client had at that moment, between two pieces in proportion."""
    place = bisect_right([moment for moment, _ in client], at)
    if place == len(client):
        return client[-1][1]
    (early, few), (late, many) = client[place - 1], client[place]
    return few + (many - few) * (at - early) / (late - early)


def all_counted(server: Server, before: dict[str, Any], tokens: int) -> dict[str, Any] | None:
    """The figures once they have all that were generated since then."""
    figures = dict(server.daemon.status()["figures"])
    more = figures["totals"]["generation_tokens"] - before["generation_tokens"]
    return figures if more >= tokens else None


@pytest.mark.long
def test_a_greedy_answer_is_the_same_next_to_a_request_that_samples(server: Server) -> None:
    """vLLM's own CPU build answers "!!!" here: the engine's lock adapts it."""
    alone = server.chat(24)["choices"]
    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            sampling = pool.submit(server.chat, 48, temperature=1.0)
            assert server.chat(24)["choices"] == alone
            assert sampling.result()["choices"]


def test_an_unchanged_file_reloads_without_a_restart(server: Server) -> None:
    pid = server.daemon.status()["engine_pid"]
    done = server.daemon.ctl("reload")
    assert (done.returncode, server.daemon.status()["engine_pid"]) == (0, pid), done.stderr


@pytest.mark.long
def test_mode_fast_brings_the_engine_back_with_mtp_4_in_its_own_metrics(server: Server) -> None:
    inspected = server.inspected()
    assert len(inspected) == 2, "model and drafter"
    done = server.daemon.ctl("mode", "fast")
    assert done.returncode == 0, done.stderr
    assert server.inspected() == inspected, "another plan inspects no model again"
    start = server.daemon.status()["start"]
    assert {"plan", "launch", "resolve", "engine", "load"} <= start["phases"].keys()
    assert start["reported"].keys() >= {"engine_init_s"}
    assert start["before"]["same_plan"] is False
    assert server.forecast_is_reported()
    server.chat(24)
    drafts = server.counter("vllm:spec_decode_num_drafts_total")
    assert server.counter("vllm:spec_decode_num_draft_tokens_total") == 4 * drafts > 0


@pytest.mark.long
def test_a_killed_engine_core_ends_in_a_serving_engine_with_nothing_left(server: Server) -> None:
    before = server.daemon.status()
    earlier = before["figures"]["totals"]
    assert server.chat(8)["choices"]
    totals = until(lambda: all_counted(server, earlier, 8), "the first engine's")["totals"]
    old = {p.pid for p in server.daemon.tree()}
    core = next(p for p in server.daemon.tree() if "EngineCor" in p.name)
    os.kill(core.pid, signal.SIGKILL)
    until(lambda: server.daemon.status()["generation"] > before["generation"], "another start")
    assert not server.alive(old)
    server.daemon.until_state("SERVING")
    assert server.chat(8)["choices"]
    figures = until(lambda: all_counted(server, totals, 8), "what both engines counted")
    assert figures["totals"]["requests"] > totals["requests"] > earlier["requests"]
    assert figures["restarts"]["engine-died"] == 1
    shown = server.daemon.ctl("history", "--since", "1h").stdout
    assert "restart  engine-died" in shown
    assert "rung" not in shown
