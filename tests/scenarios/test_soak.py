"""`caovanctl soak` over a whole daemon and the stand-in engine: every fault is named."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon_process import Daemon, daemon
from tests.patience import PATIENCE_S
from tests.scenarios.test_supervision import configuration, model

__all__ = ["model"]  # a fixture

SHORTEST = "0.005"
PACE = {"pace_s": 0.002}


def soaked(one: Daemon, hours: str) -> tuple[int, dict[str, Any]]:
    """The exit status and the result."""
    done = one.ctl("soak", hours, "--at-once", "3", "--json")
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def failed(result: dict[str, Any]) -> dict[str, str]:
    """The checks that failed, and their texts."""
    return {one["name"]: one["text"] for one in result["checks"] if one["outcome"] == "failed"}


def broken(
    model: Path, what: str, hours: str = SHORTEST, count: int = 90, **more: Any
) -> tuple[int, dict[str, Any]]:
    """The result with an engine that goes wrong at the completion of this number."""
    fault = {"at": "completion", "count": count, "do": what, **more}
    with daemon(configuration(model, {**PACE, "fault": fault})) as one:
        one.until_state("SERVING")
        return soaked(one, hours)


@contextlib.contextmanager
def soaking(model: Path) -> Iterator[tuple[Daemon, subprocess.Popen[str]]]:
    """A daemon that serves, and a soak of it that has printed its first line of figures."""
    with daemon(configuration(model, PACE)) as one:
        one.until_state("SERVING")
        with subprocess.Popen(
            # A shell that runs the tests in the background has its commands ignore Ctrl-C.
            ["env", "--default-signal=INT", *one.caovanctl, "soak", "5", "--json"],
            env=one.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            try:
                assert process.stderr is not None
                while "requests, " not in process.stderr.readline():
                    assert process.poll() is None
                yield one, process
            finally:
                process.kill()


def test_a_sound_engine_passes_and_the_result_is_kept_next_to_benchs(model: Path) -> None:
    with daemon(configuration(model, PACE)) as one:
        one.until_state("SERVING")
        done = one.ctl("soak", SHORTEST, "--at-once", "3")
        kept = Path(done.stdout.splitlines()[-1].removeprefix("stored in "))
        result = json.loads(kept.read_text())
    # How fast this machine is now is no matter of this test.
    slow = {"decoding alone", "prefill alone", "first token under load"}
    assert failed(result).keys() <= slow, done.stdout
    assert done.returncode == (1 if failed(result) else 0)
    assert kept.parent == one.folder / "state/bench" / result["fingerprint"]
    assert kept.name.startswith("soak-")
    assert set(result["requests"]) == {"chat", "short", "long", "left", "constrained", "known"}
    assert "3 at once, seed 1: " in done.stdout
    assert "answers alone           " in done.stdout
    assert " left, " in done.stderr
    assert "0 errors, " in done.stderr


@pytest.mark.long
def test_the_engine_is_killed_in_the_middle(model: Path, tmp_path: Path) -> None:
    code, result = broken(model, "exit", memory=str(tmp_path / "memory"))
    assert code == 1
    found = failed(result)
    assert found["restarts"].startswith("the engine was restarted once, first after 0:00:")
    assert "incident 0001-engine-died" in found["restarts"]
    assert "no answer" in found["errors"]
    assert not any("memory" in name or "files" in name for name in found), found
    assert "answers alone" not in found, "the answers of the next engine are learnt anew"
    lives = {sample["generation"] for sample in result["samples"]}
    assert len(lives) == 2, "it went on with the next engine"


@pytest.mark.long
@pytest.mark.parametrize(
    ("what", "checks", "text"),
    [
        ("wrong", ["answers alone", "answers under load"], "token 2 is 'nine' instead of 'word 1'"),
        ("cut", ["errors"], "no answer; first after"),
        ("refuse", ["errors"], "x HTTP 500"),
        ("mute", ["errors"], "x empty answer"),
        ("nan", ["errors"], "x degenerate answer"),
    ],
)
def test_a_fault_is_named(model: Path, what: str, checks: list[str], text: str) -> None:
    code, result = broken(model, what)
    assert code == 1
    assert not result["passed"]
    found = failed(result)
    assert all(text in found[check] for check in checks), found


@pytest.mark.long
def test_a_leak_within_a_short_soak_is_noted(model: Path) -> None:
    _, result = broken(model, "leak")
    (found,) = (one for one in result["checks"] if one["name"] == "engine's memory")
    assert found["outcome"] == "noted"
    assert "grew by" in found["text"]


@pytest.mark.long
def test_an_engine_that_becomes_slower_is_found(model: Path) -> None:
    code, result = broken(model, "slow", hours="0.012", count=220)
    assert code == 1
    found = failed(result)
    assert "% slower" in found["decoding alone"]
    assert "% slower" in found["prefill alone"]


def test_ctrl_c_ends_it_early_with_the_verdict_so_far(model: Path) -> None:
    with soaking(model) as (_, process):
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    result = json.loads(out)
    assert result["complete"] is False
    assert result["seconds"] < 3600
    assert process.returncode == (0 if result["passed"] else 1)
    assert "Traceback" not in err


@pytest.mark.long
def test_a_daemon_that_goes_away_ends_it(model: Path) -> None:
    with soaking(model) as (one, process):
        one.stop()
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "caovan" in failed(json.loads(out))["restarts"]
