"""The draft tuner over a real vLLM whose drafts are never accepted: it turns them off.

That is also a hybrid that does not draft: its cache is the one that was forecast.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.daemon_process import Daemon, daemon
from tests.patience import PATIENCE_S, until
from tests.ports import free_port
from tests.real_engine import configuration, found_out

pytestmark = [pytest.mark.engine, pytest.mark.long]
APPLY = """stable_after_s = 5
[policy]
tune = "apply"
tune_quiet_s = 10
"""
DRAFTS_ANYWAY = """
import sys
from caovand.__main__ import main
from caovand.engines.vllm.planning import speculation
speculation.uneven_drafts_end = lambda draft: ""
sys.argv = ["caovand", *sys.argv[4:]]
sys.exit(main())
"""
"""Runs a daemon whose policy drafts with a hybrid on the CPU build, as it does on cards."""


def ask(port: int) -> None:
    """One answer of some seconds."""
    # Without drafts, this model on the CPU build dies of a prompt of one token.
    body = {"model": "tiny", "prompt": "hello there", "max_tokens": 500, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps({**body, "temperature": 0}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        answer.read()


def asked_until(one: Daemon, port: int, text: str) -> float:
    """Ask until the tuner shows this text; the tokens a second of the last answer."""

    def look() -> float:
        begin = time.monotonic()
        ask(port)
        speed = 500 / (time.monotonic() - begin)
        found = one.status()["figures"]["tuning"]
        return speed if found and text in found["text"] else 0.0

    return until(look, f"the tuner to show: {text}")


def test_drafts_that_are_never_accepted_are_turned_off_and_answers_come_faster(
    engine: Path,
) -> None:
    port = free_port()
    config = configuration(engine, "hybrid", port, APPLY)
    wrapper = (sys.executable, "-c", DRAFTS_ANYWAY)
    with daemon(config, wrapper=wrapper, found_out=found_out(engine)) as one:
        first = one.until_state("SERVING")
        assert first["mtp"] == 3
        before = asked_until(one, port, "drafting depth 0 instead of 3")
        # Between the plan and its engine the one before is SERVING, and about to end.
        until(lambda: one.status()["generation"] > first["generation"], "another engine")
        assert one.until_state("SERVING")["mtp"] == 0
        after = asked_until(one, port, "drafting depth 0 is the fastest")
        assert after > before
        assert ": it stays" in " ".join(one.events())

        without = one.folder / "without-drafts.toml"
        without.write_text(configuration(engine, "hybrid", port, "[policy]\nmtp = 0"))
        planned = one.ctl("plan", "--config", str(without), "--json")
        forecast = json.loads(planned.stdout)["memory"]
        assert forecast["kv_tokens"] == one.status()["reported"]["kv_tokens"]
