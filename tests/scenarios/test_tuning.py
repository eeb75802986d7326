"""The draft tuner over a whole daemon: it suggests, moves, stays or returns, and waits."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.daemon_process import Daemon, daemon
from tests.patience import until
from tests.scenarios.test_supervision import configuration, model

__all__ = ["model"]  # a fixture

SELDOM = {"chance": 0.02, "step_s": 0.02, "draft_s": 0.002}
CLIFF = {"chance": 0.9, "step_s": 0.02, "draft_s": 0.0005, "cliff": 4}


def tuned(model: Path, tune: str, drafting: dict[str, float], **orders: str) -> str:
    return configuration(
        model,
        {"drafting": drafting, **orders},
        policy=f'tune = "{tune}"\ntune_quiet_s = 5',
        watch="stable_after_s = 1",
    )


def ask(one: Daemon) -> None:
    """One request of thousands of tokens, which the stand-in answers at once."""
    port = one.status()["served"]["port"]
    body = json.dumps({"model": "hybrid", "prompt": [1], "max_tokens": 6000}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body)
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()


def asked_until(one: Daemon, text: str) -> dict[str, Any]:
    """Ask one request after another until the tuner shows this text; what it shows."""

    def look() -> dict[str, Any] | None:
        ask(one)
        found = one.status()["figures"]["tuning"]
        return found if found and text in found["text"] else None

    found = until(look, f"the tuner to show: {text}")
    assert found is not None
    return found


def depth(one: Daemon) -> int | None:
    """The depth of the engine that serves, if one does."""
    status = one.status()
    return int(status["mtp"]) if status["state"] == "SERVING" else None


def until_event(one: Daemon, text: str) -> None:
    until(lambda: text in " ".join(one.events()), f"an event with: {text}")


def test_what_is_suggested_is_applied_once_asked_for_and_stays_if_faster(model: Path) -> None:
    with daemon(tuned(model, "suggest", SELDOM)) as one:
        one.until_state("SERVING")
        found = asked_until(one, "drafting depth 0 instead of 3")
        assert (found["depth"], found["best"]) == (3, 0)
        assert "expected" in found["text"]
        accepted = one.status()["figures"]["drafting"]["accepted"]
        assert accepted == pytest.approx([0.02, 0.0004, 0.0], abs=1e-4)
        assert "tune " in one.ctl("status").stdout
        one.config_path.write_text(one.config_path.read_text().replace("suggest", "apply"))
        assert one.ctl("reload").returncode == 0
        asked_until(one, "waiting for 5 s without a request")
        assert depth(one) == 3
        until(lambda: depth(one) == 0, "depth 0")
        assert "--speculative-config" not in one.commands()[-1]
        planned = json.loads(one.ctl("plan", "--json").stdout)["settings"]["speculative_config"]
        assert planned["reason"] == "[policy] tune chose depth 0 instead of 3"
        asked_until(one, "drafting depth 0 is the fastest")
        until_event(one, ": it stays")
        assert one.status()["figures"]["restarts"] == {"plan": 1}
        one.stop()
        one.start()
        one.until_state("SERVING")
        assert depth(one) == 0


@pytest.mark.long
def test_a_depth_that_turns_out_slower_is_left_again(model: Path) -> None:
    with daemon(tuned(model, "apply", CLIFF)) as one:
        one.until_state("SERVING")
        asked_until(one, "waiting for 5 s without a request")
        until(lambda: (depth(one) or 0) > 3, "a deeper depth")
        asked_until(one, ": back to 3; waiting for 5 s")
        until(lambda: depth(one) == 3, "depth 3 again")
        until_event(one, ": back to 3")


@pytest.mark.long
def test_nothing_is_moved_after_an_engine_failed(model: Path) -> None:
    with daemon(tuned(model, "apply", SELDOM)) as one:
        pid = one.until_state("SERVING")["engine_pid"]
        asked_until(one, "waiting for 5 s without a request")
        os.kill(pid, signal.SIGKILL)
        until(lambda: one.status()["engine_pid"] not in (pid, None), "a new engine")
        one.until_state("SERVING")
        asked_until(one, "an engine failed: no change for ")
        assert depth(one) == 3
        assert one.status()["figures"]["restarts"].get("plan") is None


@pytest.mark.long
def test_an_engine_that_fails_on_trial_is_started_as_before_at_once(model: Path) -> None:
    orders = {"die_at": "load", "unless": "--speculative-config"}
    with daemon(tuned(model, "apply", SELDOM, **orders)) as one:
        one.until_state("SERVING")
        asked_until(one, "waiting for 5 s without a request")
        until_event(one, "drafting depth 0 failed on trial: back to 3, and not tried again")
        assert one.until_state("SERVING")["mtp"] == 3
        assert ["--speculative-config" in command for command in one.commands()] == [
            True,
            False,
            True,
        ]
        asked_until(one, "an engine failed: no change for ")
        assert not one.status()["rungs"]
