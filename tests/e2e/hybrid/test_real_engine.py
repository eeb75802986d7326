"""caovand over a real vLLM: three boots, one of them long, and what must be true after each."""

from __future__ import annotations

import os
import signal
import time
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.hybrid.conftest import Server
from tests.patience import until

pytestmark = pytest.mark.engine
MAX_TOKENS = 40_000


def test_it_serves_completions_with_mtp_3_and_says_what_vllm_reported(server: Server) -> None:
    answer = server.chat(24)
    assert answer["usage"]["completion_tokens"] == 24  # type: ignore[index]
    drafts = server.counter("vllm:spec_decode_num_drafts_total")
    assert server.counter("vllm:spec_decode_num_draft_tokens_total") == 3 * drafts > 0
    status = server.daemon.status()
    assert (status["state"], status["mtp"], status["mode"]) == ("SERVING", 3, "stable")
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
    while len(begins) < 2 and client[-1][1] < MAX_TOKENS:
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
